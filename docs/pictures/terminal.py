"""Write docs/pictures/terminal.svg: `sax` in a real terminal, for the README. `make pictures`.

Every line under a prompt is what the command printed just now, in a pseudo-terminal, on a cell that
`sax demo` started: nothing is typed by hand but the commands. Left out is what `sax demo` prints
after its answer, the commands to go on with.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from docs.pictures.screen import Screen
from tests.demo_model import FILE, demo_model

PICTURE = Path(__file__).with_suffix(".svg")
DEMO = f"sax demo .cache/models/{FILE}"
COMMANDS = (
    "sax status | head -2",
    'sax chat /sax/test/smollm2 "Name three primary colours."',
    """curl -s localhost:8888/generate -H 'Content-type: application/json' -d '{
    "model": "/sax/test/smollm2", "query": "How many days are in a week?",
    "extra_inputs": {"temperature": 0}}'""",
)
COLUMNS, ROWS = 96, 40
TIME_LIMIT_S = 900
THEME = TerminalTheme(
    (13, 17, 23),
    (230, 237, 243),
    [
        (72, 79, 88), (255, 123, 114), (63, 185, 80), (210, 153, 34),
        (88, 166, 255), (188, 140, 255), (57, 197, 207), (177, 186, 196),
    ],
)  # fmt: skip


class Command:
    """One command in a pseudo-terminal of its own."""

    def __init__(self, line: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._terminal, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            ["sh", "-c", line],
            cwd=folder,
            env=environment,
            stdin=end,
            stdout=end,
            stderr=end,
            start_new_session=True,
        )
        os.close(end)
        self.screen = Screen()

    def read_until(self, words: str) -> str:
        """Read what is printed until these words are on the screen; return what is before them."""
        until = time.monotonic() + TIME_LIMIT_S
        while words not in self.screen.text():
            if time.monotonic() > until or not self._read():
                raise RuntimeError(f"{words!r} was not printed:\n{self.screen.text()}")
        return self.screen.text().partition(words)[0]

    def read(self) -> str:
        """Read everything that is printed until the end."""
        while self._read():
            pass
        if self._process.wait() != 0:
            raise RuntimeError(self.screen.text())
        return self.screen.text()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self.read()

    def _read(self) -> bool:
        if not select.select([self._terminal], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:  # the last process that had this terminal ended
            return False
        self.screen.write(data)
        return bool(data)


def record(folder: Path) -> str:
    """Run the story in a folder laid out like a clone; return the transcript with its colours."""
    environment = _lay_out(folder)
    demo = Command(f"exec {DEMO}", folder, environment)
    try:
        first = _prompt(DEMO) + demo.read_until("Serving at").rstrip()
        rest = [_prompt(line) + Command(line, folder, environment).read() for line in COMMANDS]
    finally:
        demo.stop()
    return "\n\n".join((first, *rest))


def draw(transcript: str) -> str:
    """Draw a transcript as an SVG of a terminal window."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), legacy_windows=False)
    console.print(Text.from_ansi(transcript), soft_wrap=False)
    return console.export_svg(title="sax", theme=THEME, unique_id="sax")


def _lay_out(folder: Path) -> dict[str, str]:
    (folder / ".cache" / "models").mkdir(parents=True)
    (folder / ".cache" / "models" / FILE).symlink_to(demo_model())
    command = folder / "bin" / "sax"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sax.cli "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "xterm-256color", "NO_PROXY": "localhost,127.0.0.1"}


def _prompt(line: str) -> str:
    return f"\x1b[1;32m$\x1b[0m \x1b[1m{line}\x1b[0m\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        PICTURE.write_text(draw(record(Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
