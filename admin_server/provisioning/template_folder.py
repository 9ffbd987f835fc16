"""The folder of templates on local disk, read again when a file in it changes.

A mounted ConfigMap changes by a link whose name begins with two dots: such names are ignored.
"""

from __future__ import annotations

import logging
from pathlib import Path

from admin_server.provisioning.templates import Template, parse_template
from sax.errors import InvalidRequest

_log = logging.getLogger(__name__)
_SUFFIXES = (".yaml", ".yml")
_Mark = tuple[tuple[str, int, int], ...]


class TemplateFolder:
    """The templates as of the last time all of them were valid."""

    def __init__(self, folder: str) -> None:
        """Raises InvalidRequest for an invalid folder or template."""
        self._folder = Path(folder)
        self._mark = self._look()
        self.templates = self._read()
        self.trouble = ""  # why the current files are not used

    def refresh(self) -> bool:
        """Read changes; True if there were any. Keeps the old templates if invalid."""
        try:
            mark = self._look()
            if mark == self._mark:
                return False
            self._mark = mark
            self.templates, self.trouble = self._read(), ""
        except InvalidRequest as exc:
            if self.trouble != exc.text:
                _log.error("%s; still using the previous templates", exc.text)
            self.trouble = exc.text
        return True

    def _look(self) -> _Mark:
        try:
            stats = [(path.name, path.stat()) for path in self._files()]
        except OSError as exc:
            raise _unreadable(self._folder, exc) from exc
        return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)

    def _files(self) -> list[Path]:
        return sorted(
            path
            for path in self._folder.iterdir()
            if not path.name.startswith("..") and path.suffix in _SUFFIXES
        )

    def _read(self) -> tuple[Template, ...]:
        files: dict[str, str] = {}
        templates: list[Template] = []
        try:
            for path in self._files():
                template = parse_template(path.read_text(), path.name)
                if (other := files.setdefault(template.name, path.name)) != path.name:
                    raise InvalidRequest(
                        f"the templates {other} and {path.name} are both named {template.name}: "
                        "objects are named after their template",
                        param="kubernetes",
                    )
                templates.append(template)
        except (OSError, UnicodeDecodeError) as exc:
            raise _unreadable(self._folder, exc) from exc
        if not templates:
            raise InvalidRequest(
                f"there is no template (*.yaml) in {self._folder}: put a JobSet or a "
                "LeaderWorkerSet there, one per file",
                param="kubernetes",
            )
        return tuple(templates)


def _unreadable(folder: Path, exc: Exception) -> InvalidRequest:
    return InvalidRequest(
        f"the templates of model servers in {folder} cannot be read ({exc}): set --kubernetes "
        "to a folder of templates",
        param="kubernetes",
    )
