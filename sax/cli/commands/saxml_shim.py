"""The `saxml-shim` command: Saxml's import paths for our calls, written into a folder of packages.

    from saxml.client.python import sax
    from saxml.protobuf import multimodal_pb2
    from pybind11_abseil.status import StatusNotOk

Not part of the installation: two programs of one environment may want different `saxml` packages.
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from sax.command import CommandResult
from sax.errors import InvalidRequest

_MARK = "# Saxml's import paths for `sax`; `sax saxml-shim --remove` takes them away.\n"
_STATUS = "pybind11_abseil"
_PROTOS = ("admin", "audio", "common", "custom", "lm", "modelet", "multimodal", "vision")
_NO_SERVICES = ("common",)

_CLIENT = """\
import sys

import sax

sys.modules[f"{__name__}.sax"] = sax
"""
_PROTOBUF = """\
import importlib
import sys

for _name in {names}:
    _module = importlib.import_module(f"sax.proto.{{_name}}")
    globals()[_name] = sys.modules[f"{{__name__}}.{{_name}}"] = _module
"""
_FILES = {
    "saxml/__init__.py": "",
    "saxml/client/__init__.py": "",
    "saxml/client/python/__init__.py": _CLIENT,
    "saxml/protobuf/__init__.py": _PROTOBUF.format(
        names=tuple(
            f"{name}_{kind}"
            for name in _PROTOS
            for kind in ("pb2", "pb2_grpc")
            if not (name in _NO_SERVICES and kind == "pb2_grpc")
        )
    ),
    f"{_STATUS}/__init__.py": "",
    f"{_STATUS}/status.py": "from sax.status import Status, StatusCode, StatusNotOk\n",
}


def saxml_shim(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of packages; default: where this Python's packages are."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the packages away.")] = False,
) -> CommandResult:
    """Let `from saxml.client.python import sax` find the calls of this package.

    Writes a small package `saxml`, and `pybind11_abseil` with StatusNotOk if there is none.
    Programs written for Saxml's Python client then run unchanged.

    \b
    Examples:
      sax saxml-shim
      sax saxml-shim ./packages && PYTHONPATH=./packages python program.py
      sax saxml-shim --remove
    """
    place = default_folder() if folder is None else folder
    done = "removed" if remove else "wrote"
    packages = [str(each) for each in (remove_shim(place) if remove else install_shim(place))]
    lines = "\n".join(f"{done} {package}" for package in packages)
    return CommandResult({done: packages}, lines or "there is nothing to remove")


def default_folder() -> Path:
    """Return where this interpreter's packages are."""
    return Path(sysconfig.get_path("purelib"))


def install_shim(folder: Path) -> list[Path]:
    """Write the packages and return their folders. Writing again changes nothing.

    A pybind11_abseil of its own is left alone. Raises InvalidRequest if the folder has another
    `saxml`, or cannot be written.
    """
    if _is_foreign(folder / "saxml"):
        raise InvalidRequest(
            f"{folder / 'saxml'} is another package, perhaps Saxml itself: choose another folder, "
            "and put it before that one in PYTHONPATH",
            param="folder",
        )
    wanted = [name for name in ("saxml", _STATUS) if not _is_foreign(folder / name)]
    try:
        for name, text in _FILES.items():
            if name.partition("/")[0] in wanted:
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(_MARK + text)
    except OSError as exc:
        raise InvalidRequest(f"{folder} cannot be written: {exc}", param="folder") from exc
    return [folder / name for name in wanted]


def remove_shim(folder: Path) -> list[Path]:
    """Remove the packages that `install` wrote, and return their folders."""
    ours = [folder / name for name in ("saxml", _STATUS) if _is_ours(folder / name)]
    for package in ours:
        shutil.rmtree(package)
    return ours


def _is_ours(package: Path) -> bool:
    first = package / "__init__.py"
    return first.is_file() and first.read_text().startswith(_MARK)


def _is_foreign(package: Path) -> bool:
    return package.exists() and not _is_ours(package)
