"""The commands of the install pages are ones that our programs take, and form one gang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from admin_server.__main__ import parse as parse_admin
from http_gateway.config import parse_flags
from model_server.flags.command_line import make_config
from model_server.multihost.membership import membership
from sax.cli.main import app
from tests.docs.blocks import PAGES
from tests.each_case import each_case
from tests.k8s.page.shell import blocks, commands

_PAGES = ("docs/how_to/gpu.md", "docs/how_to/tpu_vm.md", "docs/tutorial/one_evening.md")
_MODELS = ("minilm", "qwen", "smollm2")
_PARSERS: dict[str, Any] = {
    "admin_server": parse_admin,
    "model_server": make_config,
    "http_gateway": parse_flags,
}


def _typed(page: str) -> Iterator[list[str]]:
    """Yield the words of each command, without the folder of its program."""
    for block in blocks(PAGES[page]):
        for program, *words in commands(block.replace("2>&1", "")):
            # In full: for a last name the command line asks the cell.
            full = (f"/sax/test/{word}" if word in _MODELS else word for word in words)
            yield [program.removeprefix(".venv/bin/"), *full]


def _servers(page: str) -> Iterator[tuple[str, list[str]]]:
    for command in _typed(page):
        if command[:2] == ["python", "-m"] and command[2] in _PARSERS:
            yield command[2], ["3" if word == "$ordinal" else word for word in command[3:]]


@each_case("page", _PAGES)
def test_the_servers_take_the_flags_that_a_page_gives_them(page: str) -> None:
    made = [_PARSERS[name](words) for name, words in _servers(page)]
    assert made


@pytest.mark.extended
@each_case("page", _PAGES)
def test_the_command_line_takes_what_a_page_types(page: str) -> None:
    root: Any = get_command(app)
    typed = [words for program, *words in _typed(page) if program == "sax"]
    assert typed
    for name, *words in typed:
        command = root.get_command(typer.Context(root), name)
        assert command is not None, name
        command.make_context(name, words)  # raises for an option or an argument that it lacks


def test_the_hosts_of_the_slice_form_one_gang() -> None:
    *_, (name, words) = _servers("docs/how_to/tpu_vm.md")
    assert name == "model_server"
    config = make_config(words)
    found = membership(config.hosts, config.host_ordinal, {}, "t1v-n-0a1b2c3d-w-3")
    assert (found.count, found.ordinal, found.primary) == (4, 3, "10.0.0.2")


def test_a_wrong_flag_would_be_noticed() -> None:
    with pytest.raises(SystemExit):
        make_config(["--host_number", "3"])
