"""Imports the modules named by `--import`, which register models of their own."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Sequence

from sax.errors import LoadFailed


def import_modules(names: Sequence[str]) -> None:
    """Import in order. Raises LoadFailed with the module, the error and its location."""
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as exc:  # also a module that calls sys.exit
            raise LoadFailed(f"--import {name}: {_where(exc)}{type(exc).__name__}: {exc}") from exc


def _where(exc: BaseException) -> str:
    """Return file and line of the user's code that failed; "" if none ran."""
    own = [
        frame
        for frame in traceback.extract_tb(exc.__traceback__)
        if not frame.filename.startswith("<") and "importlib" not in frame.filename
    ][1:]
    return f"{own[-1].filename}:{own[-1].lineno}: " if own else ""
