"""Runs a module as a child process that ends when its supervisor dies.

    python -m sax.cli.local.leash admin_server --port 10000

Standard input is the read end of a pipe whose only writer is the supervisor. When the supervisor
dies, even by kill -9, the pipe closes and this process drains as on SIGTERM. Works the same on
Linux and macOS.

The code of dataclasses' methods is kept, as Python keeps that of modules and in the same folder: a
dataclass writes its methods as text, and compiling the 3,000 texts of a model server takes a sixth
of its start.
"""

from __future__ import annotations

import dataclasses
import gc
import marshal
import os
import runpy
import signal
import sys
import threading
import time
import zlib
from contextlib import suppress
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from types import CodeType
from typing import Any

DRAIN_S = 30.0  # longer than the servers' own drain timeout
_MOST_TEXTS = 20_000  # then a file begins anew: it has 3,000, and those of older versions
_IMPORTS_S = 3.0  # what is made until then stays, so garbage is collected from then on


def main() -> None:
    if len(sys.argv) < 2:
        sys.stderr.write("usage: python -m sax.cli.local.leash MODULE [FLAGS ...]\n")
        raise SystemExit(2)
    module, *flags = sys.argv[1:]
    threading.Thread(target=_end_with_supervisor, name="leash", daemon=True).start()
    import_quickly(module)
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with_supervisor() -> None:
    while os.read(0, 64):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(DRAIN_S)
    os._exit(1)


def import_quickly(program: str) -> None:
    """Collect no garbage while a program imports its modules, and keep the code of dataclasses."""
    gc.disable()
    code = KeptCode(code_file(program))
    code.use()
    threading.Thread(target=_settle, args=(code,), name="garbage", daemon=True).start()


def _settle(code: KeptCode) -> None:
    time.sleep(_IMPORTS_S)
    gc.freeze()
    gc.enable()
    while code.keep():  # more may be imported, as on a busy machine
        time.sleep(_IMPORTS_S)
    code.forget()


class KeptCode:
    """Code by its text, in a file: whatever the file holds was compiled from that text by the same
    version of Python, so it is never outdated."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._read()
        self._new: dict[str, CodeType] = {}

    def use(self) -> None:
        """Let dataclasses look here before they compile."""
        module: Any = dataclasses
        module.exec = self._run

    def keep(self) -> bool:
        """Write what was compiled since the last call, if Python may keep bytecode there; return
        True if there was some."""
        if not self._new:
            return False
        self._known, self._new = self._known | self._new, {}
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                self._write(self._known)
        return True

    def forget(self) -> None:
        """Let dataclasses compile again."""
        module: Any = dataclasses
        del module.exec
        self._known = {}

    def _run(self, text: str, variables: dict[str, Any], found: dict[str, Any]) -> None:
        code = self._known.get(text)
        if code is None:
            code = self._new[text] = compile(text, "<string>", "exec", dont_inherit=True)
        exec(code, variables, found)

    def _read(self) -> dict[str, CodeType]:
        with suppress(OSError, ValueError, EOFError, TypeError):
            head, body = (data := self._path.read_bytes())[:_HEAD], memoryview(data)[_HEAD:]
            if head == _head(body) and len(code := marshal.loads(body)) < _MOST_TEXTS:
                return code
        return {}

    def _write(self, code: dict[str, CodeType]) -> None:
        body = marshal.dumps(code)
        place = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(exist_ok=True)
            place.write_bytes(_head(body) + body)
            place.replace(self._path)
        finally:
            place.unlink(missing_ok=True)


_HEAD = len(MAGIC_NUMBER) + 4


def _head(body: bytes | memoryview) -> bytes:
    return MAGIC_NUMBER + zlib.crc32(body).to_bytes(4, "little")


def code_file(program: str) -> Path:
    """Return where the code of a program's dataclasses is kept: beside the bytecode of this one."""
    return Path(cache_from_source(__file__)).with_suffix(f".{program}")


if __name__ == "__main__":
    main()
