"""A chat on a real terminal: arrow keys, messages of many lines, slashes, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sax.types import Message
from tests.sax.cli.fake_cell import FakeCell

MODEL = "/sax/test/m"
WITHIN_S = 60.0
_CALM = 6  # looks at a program that sleeps
# Ctrl-C is a signal only for whoever owns the terminal.
_OWNER = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
from sax.cli.__main__ import main
main()
"""


class Terminal:
    """`sax chat` on one side of a pseudo-terminal, and whoever types on the other."""

    def __init__(self, *words: str, state: Path, term: str = "dumb") -> None:
        self._ours, theirs = pty.openpty()
        self.seen = ""
        environ = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": term}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ,
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def expect(self, pattern: str) -> str:
        """Read until the pattern was printed; return all that came with it, and forget it."""
        end = time.monotonic() + WITHIN_S
        while not (found := re.search(pattern, self.seen)):
            left = end - time.monotonic()
            assert left > 0, f"{pattern!r} did not come: {self.seen!r}"
            if select.select([self._ours], [], [], left)[0]:
                try:
                    self.seen += os.read(self._ours, 4096).decode()
                except OSError:  # nobody is left on the other side
                    pytest.fail(f"{pattern!r} did not come before the end: {self.seen!r}")
        printed, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return printed

    def interrupt(self) -> None:
        """Press Ctrl-C once the program waits.

        Between the prompt and the wait for keys Python keeps a signal until the next key.
        """
        stat, calm = Path(f"/proc/{self.process.pid}/stat"), 0
        while calm < _CALM and stat.exists():
            calm = calm + 1 if stat.read_text().rpartition(")")[2].split()[0] == "S" else 0
            time.sleep(0.05)
        self.type("\x03")

    def close(self) -> int:
        try:
            return self.process.wait(WITHIN_S)
        finally:
            self.process.kill()
            os.close(self._ours)


@pytest.fixture
def cell() -> Iterator[FakeCell]:
    with FakeCell() as running:
        running.holds(MODEL)
        yield running


Chat = Callable[..., Terminal]


@pytest.fixture
def chat(cell: FakeCell, tmp_path: Path) -> Iterator[Chat]:
    opened: list[Terminal] = []

    def start(term: str = "dumb") -> Terminal:
        made = Terminal("chat", "m", "--admin", cell.address, state=tmp_path, term=term)
        opened.append(made)
        made.expect("> ")
        return made

    yield start
    for each in opened:
        each.process.kill()


@pytest.mark.extended
def test_ctrl_c_stops_the_answer_and_what_was_said_is_remembered(
    cell: FakeCell, chat: Chat
) -> None:
    terminal = chat()
    cell.stops_after = 1
    terminal.type("one two three\n")
    terminal.expect("ONE")
    terminal.interrupt()
    terminal.expect("> ")
    cell.stops_after = None
    terminal.type("again\n")
    terminal.expect("AGAIN")
    assert cell.asked[-1].prompt == (
        Message("user", "one two three"),
        Message("assistant", "ONE"),
        Message("user", "again"),
    )
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.close() == 0


@pytest.mark.extended
def test_a_second_ctrl_c_at_the_prompt_leaves_and_one_alone_does_not(
    cell: FakeCell, chat: Chat
) -> None:
    terminal = chat()
    terminal.type("half a line")
    terminal.expect("half a line")
    terminal.interrupt()
    terminal.expect("Ctrl-C again leaves[^>]*> ")
    terminal.type("hello\n")
    terminal.expect("HELLO[^>]*> ")
    assert [each.prompt[-1] for each in cell.asked] == [Message("user", "hello")]
    terminal.interrupt()
    terminal.expect("Ctrl-C again leaves[^>]*> ")
    terminal.interrupt()
    assert terminal.close() == 0


@pytest.mark.extended
def test_a_message_of_many_lines_and_lines_with_a_slash(cell: FakeCell, chat: Chat) -> None:
    terminal = chat()
    for line in ('"""first', "second", 'third"""'):
        terminal.type(line + "\n")
    terminal.expect("FIRST SECOND THIRD[^>]*> ")
    assert cell.asked[-1].prompt == (Message("user", "first\nsecond\nthird"),)
    for line in ("/clear", "/system be brief", "/set temperature 0.5", "/set top_k 7", "//x"):
        terminal.type(line + "\n")
    terminal.expect("/X")
    assert cell.asked[-1].prompt == (Message("system", "be brief"), Message("user", "/x"))
    assert (cell.asked[-1].sampling.temperature, cell.asked[-1].sampling.top_k) == (0.5, 7)
    terminal.type("/set temperature -1\n")
    terminal.expect("temperature cannot be -1")
    terminal.type("/set nonsense 1\n")
    terminal.expect("cannot be set here; there are temperature")
    terminal.type("/nonsense\n")
    terminal.expect("/help lists what is")
    terminal.type("/help\n")
    terminal.expect("Ctrl-C stops an answer")
    terminal.type("/bye\n")
    assert terminal.close() == 0


@pytest.mark.extended
def test_arrow_keys_bring_back_what_was_typed_in_an_earlier_chat(
    cell: FakeCell, chat: Chat, tmp_path: Path
) -> None:
    first = chat()
    first.type("remember me\n")
    first.expect("REMEMBER ME[^>]*> ")
    first.type("/bye\n")
    assert first.close() == 0
    history = tmp_path / "sax" / "chat_history"
    assert history.stat().st_mode & 0o077 == 0
    second = chat()
    second.type("\x1b[A\x1b[A\n")  # beyond /bye
    second.expect("REMEMBER ME")
    second.expect("> ")
    second.type("\x04")
    assert second.close() == 0


@pytest.mark.extended
def test_an_error_is_told_and_the_conversation_goes_on(cell: FakeCell, chat: Chat) -> None:
    terminal = chat()
    cell.refuses = True
    terminal.type("hello\n")
    terminal.expect("the queue is full")
    terminal.expect("> ")
    cell.refuses = False
    terminal.type("hello\n")
    terminal.expect("HELLO[^>]*> ")
    assert cell.asked[-1].prompt == (Message("user", "hello"),)
    terminal.type("\x04")
    assert terminal.close() == 0


@pytest.mark.extended
def test_what_is_pasted_is_one_message_and_answers_are_markdown(cell: FakeCell, chat: Chat) -> None:
    terminal = chat("xterm")
    terminal.type("\x1b[200~- first **one**\nsecond\n\n`third`\x1b[201~\n")
    printed = terminal.expect("THIRD\\x1b.0m[^>]*> ")
    assert cell.asked[-1].prompt == (Message("user", "- first **one**\nsecond\n\n`third`"),)
    assert "\x1b[1mONE\x1b[0m" in printed, "bold"
    terminal.type("/exit\n")
    assert terminal.close() == 0


@pytest.mark.extended
def test_keys_that_are_pressed_during_an_answer_do_not_mix_with_it(
    cell: FakeCell, chat: Chat
) -> None:
    terminal = chat()
    cell.stops_after = 1
    terminal.type("one two\n")
    terminal.expect("ONE")
    terminal.type("early ")
    time.sleep(0.3)
    assert "early" not in terminal.seen
    terminal.interrupt()
    terminal.expect("> ")
    cell.stops_after = None
    terminal.type("bird\n")
    terminal.expect("BIRD[^>]*> ")
    # Ctrl-C forgets what was typed before it, as everywhere.
    assert cell.asked[-1].prompt[-1] == Message("user", "bird")
    terminal.type("/quit\n")
    assert terminal.close() == 0


@pytest.mark.extended
def test_an_answer_that_was_cut_says_so_and_ollamas_words_work(cell: FakeCell, chat: Chat) -> None:
    terminal = chat()
    for line in ("/set parameter top_k 7", "/set system be brief", "/show"):
        terminal.type(line + "\n")
    terminal.expect("system be brief[^>]*top_k = 7")
    assert not cell.asked
    terminal.type("/?\n")
    terminal.expect("Ctrl-C stops an answer")
    cell.finish_reason = "length"
    terminal.type("hello\n")
    terminal.expect("HELLO[^>]*the answer was cut")
    assert cell.asked[-1].sampling.max_tokens is None
    terminal.type("/bye\n")
    assert terminal.close() == 0


@pytest.mark.extended
def test_a_completion_is_printed_as_it_is(cell: FakeCell, tmp_path: Path) -> None:
    words = ("generate", "m", "a **bold** word", "--admin", cell.address)
    terminal = Terminal(*words, state=tmp_path, term="xterm")
    printed = terminal.expect("A \\*\\*BOLD\\*\\* WORD\r\n")
    assert "\x1b" not in printed, "no colours, no cursor that moves"
    assert terminal.close() == 0
