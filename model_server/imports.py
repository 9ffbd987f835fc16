"""Brings in the modules that `--import` names, each of which registers models of its own."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence

from sax.errors import LoadFailed


def import_modules(names: Sequence[str]) -> None:
    """Import them in order. Raises LoadFailed naming the module, the error and its place."""
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as exc:  # a module that exits names itself, too
            raise LoadFailed(f"--import {name}: {_where(exc)}{type(exc).__name__}: {exc}") from exc


def _where(exc: BaseException) -> str:
    """The line of the user's code that failed; "" if it did not get that far."""
    own = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith("<") and "importlib" not in frame.filename
    ][1:]
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
