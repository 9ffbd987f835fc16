"""The `saxml-shim` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sax.saxml import shim


def saxml_shim(
    folder: Annotated[
        Path | None,
        typer.Argument(help="Folder of packages; default: where this Python's packages are."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the packages away.")] = False,
) -> None:
    """Let `from saxml.client.python import sax` find the calls of this package.

    Writes a small package `saxml`, and `pybind11_abseil` with StatusNotOk if there is none.
    Programs written for Saxml's Python client then run unchanged.

    \b
    Examples:
      sax saxml-shim
      sax saxml-shim ./packages && PYTHONPATH=./packages python program.py
      sax saxml-shim --remove
    """
    place = shim.default_folder() if folder is None else folder
    for package in shim.remove(place) if remove else shim.install(place):
        print(f"{'removed' if remove else 'wrote'} {package}")
