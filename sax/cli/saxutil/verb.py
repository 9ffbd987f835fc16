"""One command of saxutil, the call of one, and the tables that it draws."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sax.cli.saxutil.go_flags import GoFlag, ParsedFlags, WrongUsage
from sax.client import Client
from sax.client.attempts import Route
from sax.client.location import admin_address, written_address
from sax.command import printable
from sax.config import check_address
from sax.errors import InvalidRequest
from sax.format import quoted
from sax.names import CellId, ModelId
from sax.saxml.model import ModelHandle
from sax.saxml.options import ModelOptions

_QUOTES = ("'", '"')


@dataclass(frozen=True, slots=True)
class SaxutilCall:
    """A command line: the command's flags and words, and what all commands have."""

    flags: ParsedFlags
    root: str  # --sax_root; "": where the environment says
    timeout_s: float  # --sax_timeout

    @property
    def words(self) -> Sequence[str]:
        return self.flags.words

    def flag(self, name: str) -> Any:
        return self.flags.values[name]

    def client(self, name: str = "") -> Client:
        """Return a client of the cell that a cell's or a model's name names."""
        cell = _cell_of(name) if name else None
        if self.root:
            return Client(written_address(self.root, cell=cell))
        return Client(admin_address(cell=cell))

    def model(self) -> ModelHandle:
        """Return the model that the first word names, by way of -proxy if that is given."""
        model_id = str(ModelId.parse(self.words[0]))
        proxy = self.flags.values.get("proxy", "")
        route = Route(address=check_address(proxy, "proxy") if proxy else "")
        client = self.client(model_id)
        return ModelHandle(model_id, route, lambda name: client)

    def options(self) -> ModelOptions:
        return options_of(self.flag("extra"), self.timeout_s)


@dataclass(frozen=True, slots=True)
class SaxutilVerb:
    """A command: its words as in help, and what runs it. `most` None: any number of words."""

    name: str
    synopsis: str
    usage: str  # flags and words behind the name
    run: Callable[[SaxutilCall], None]
    least: int
    most: int | None
    flags: tuple[GoFlag, ...] = ()

    def check(self, words: Sequence[str]) -> None:
        if len(words) < self.least or (self.most is not None and len(words) > self.most):
            raise WrongUsage(f"{len(words)} words given; write: saxutil {self.name} {self.usage}")


def show(headings: Sequence[str], rows: Sequence[Sequence[str]], *, as_csv: bool = False) -> None:
    """Print a table on stdout."""
    text = comma_separated(headings, rows) if as_csv else drawn(headings, rows)
    sys.stdout.write(text + "\n")


def _cell_of(name: str) -> str:
    return (CellId if name.count("/") == 2 else ModelId).parse(name).cell


def options_of(extra: str, timeout_s: float) -> ModelOptions:
    """Return the options that -extra and the time limit make.

    A quoted value is a text, a number a number, anything else a text. Raises InvalidRequest.
    """
    options = ModelOptions()
    options.SetTimeout(timeout_s)
    for pair in extra.split(",") if extra else ():
        key, colon, value = pair.partition(":")
        if not colon or ":" in value:
            raise InvalidRequest(
                f"{quoted(pair)} in -extra is no pair: write key:value,key:value, e.g. "
                "temperature:0.2,per_example_max_decode_steps:8",
                param="extra",
            )
        _set(options, key, value)
    return options


def _set(options: ModelOptions, key: str, value: str) -> None:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in _QUOTES:
        options.SetExtraInputString(key, value[1:-1])
        return
    try:
        options.SetExtraInput(key, float(value))
    except ValueError:
        options.SetExtraInputString(key, value)


_NUMBER = re.compile(r"-?[0-9.]+(E[+-][0-9]+)?")


def as_number(value: float) -> str:
    """Format a score: at most 8 significant digits."""
    return f"{value:.8G}"


def drawn(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Draw a table; headings are centred capitals, numbers stand on the right.

    A line end in a cell goes on in the next line of its box.
    """
    shown = [[printable(cell).expandtabs().splitlines() or [""] for cell in row] for row in rows]
    titles = [heading.upper() for heading in headings]
    widths = [
        max([len(title), *(len(line) for row in shown for line in row[at])])
        for at, title in enumerate(titles)
    ]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    centred = [title.center(width) for title, width in zip(titles, widths, strict=True)]
    lines = [rule, _line(centred), rule]
    for row in shown:
        lines += _box(row, widths)
    return "\n".join([*lines, rule] if shown else lines)


def comma_separated(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write the rows of `-csv`; the headings are a comment line. Nothing is quoted, as in Saxml."""
    return "\n".join([f"# {','.join(headings)}", *(printable(",".join(row)) for row in rows)])


def _box(row: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    height = max(len(lines) for lines in row)
    return [
        _line([_padded(lines, at, width) for lines, width in zip(row, widths, strict=True)])
        for at in range(height)
    ]


def _padded(lines: Sequence[str], at: int, width: int) -> str:
    text = lines[at] if at < len(lines) else ""
    is_number = len(lines) == 1 and _NUMBER.fullmatch(text)
    return text.rjust(width) if is_number else text.ljust(width)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
