"""The pictures of the README: the screen that is recorded, and that what is drawn is current."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from html import unescape
from pathlib import Path

import pytest

from docs.pictures import page, system, terminal
from docs.pictures.screen import Screen
from tests.each_case import each_case


@each_case(
    "written, seen",
    [
        (["one\r\ntwo\r\n"], "one\ntwo"),
        (["half", "way\r\n"], "halfway"),
        (["\x1b[1mbold\x1b[0m"], "\x1b[1mbold\x1b[0m"),
        (["bar 1\r\x1b[2K", "bar 2"], "bar 2"),
        (["a 1\nb 1\r\x1b[2K\x1b[1A\x1b[2Ka 2\nb 2"], "a 2\nb 2"),
        (["\x1b[?25lhidden cursor\x1b[?25h"], "hidden cursor"),
        (["split \x1b[3", "1mred"], "split \x1b[31mred"),
    ],
)
def test_the_screen_shows_what_a_terminal_would(written: list[str], seen: str) -> None:
    screen = Screen()
    for piece in written:
        screen.write(piece.encode())
    assert screen.text() == seen


def test_a_character_may_arrive_in_pieces() -> None:
    screen = Screen()
    for byte in "━ é".encode():
        screen.write(bytes([byte]))
    assert screen.text() == "━ é"


def test_a_command_runs_in_a_terminal(tmp_path: Path) -> None:
    code = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size().columns)"
    line = f"{sys.executable} -c '{code}'"
    assert terminal.Command(line, tmp_path, {}).read() == f"True {terminal.COLUMNS}"


def test_a_command_that_fails_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="what went wrong"):
        terminal.Command("echo what went wrong; exit 3", tmp_path, {}).read()


def test_the_drawn_terminal_has_the_text() -> None:
    drawn = terminal.draw("\x1b[1;32m$\x1b[0m sax ls\n<model> & replica")
    assert _text(drawn).split() == ["sax", "$", "sax", "ls", "<model>", "&", "replica"]


def test_the_recorded_commands_are_those_of_the_script() -> None:
    recorded = "".join(_text(terminal.PICTURE.read_text()).split())
    for line in (terminal.DEMO, *terminal.COMMANDS):
        assert "".join(line.split()) in recorded, "run 'make pictures'"


def test_the_picture_of_the_system_is_current() -> None:
    assert system.PICTURE.read_text() == system.draw(), "run 'make pictures'"
    ElementTree.fromstring(system.draw())


def test_the_screenshots_are_small() -> None:
    pictures = [page.FOLDER / f"{name}.png" for name in page.NAMES]
    assert {*page.FOLDER.glob("page_*.png")} == {*pictures}
    for picture in pictures:
        data = picture.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert len(data) < 200_000


def _text(svg: str) -> str:
    found = (
        "".join(element.itertext())
        for element in ElementTree.fromstring(svg).iter()
        if element.tag.endswith("}text")
    )
    return re.sub("\xa0", " ", unescape(" ".join(found)))
