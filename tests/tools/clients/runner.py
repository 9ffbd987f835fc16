"""Runs the checks of one client with that client's own Python, where only the client is installed.

    python tests/tools/clients/runner.py tests/tools/clients/programs/with_httpx.py

A check is a public function of the program; its docstring says what it runs. One line
of JSON is written for each check to the file descriptor that $SAX_CLIENTS_REPLY names.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType


def checks(program: ModuleType) -> Iterator[Callable[[], None]]:
    """The program's checks in the order of its text."""
    for name, value in vars(program).items():
        if inspect.isfunction(value) and value.__module__ == program.__name__ and name[0] != "_":
            yield value


def _loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(check: Callable[[], None]) -> str:
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""


def main(path: str) -> None:
    with os.fdopen(int(os.environ["SAX_CLIENTS_REPLY"]), "w") as reply:
        program = _loaded(path)
        package = getattr(program, "PACKAGE", "")  # of Python, else the program says its version
        version = importlib.metadata.version(package) if package else program.VERSION
        for check in checks(program):
            told = {"check": check.__name__, "version": version, "failure": _run(check)}
            reply.write(json.dumps(told) + "\n")
            reply.flush()


if __name__ == "__main__":
    main(sys.argv[1])
