"""Parts that the commands of `sax` share, in whichever package a command lives.

Commands outside `sax.cli` are found through the entry-point group `sax.commands`, so their packages
are not imported here, and the libraries that they compute with need not be installed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from sax.errors import InvalidRequest, SaxError
from sax.finding import OK, PROBLEM, WARNING, Finding
from sax.format import quoted
from sax.host import missing_model_server
from sax.overrides.json_text import json_remedy

FAILED, WRONG = 1, 2  # exit statuses: an error, bad arguments

# Plain text and short names for help: settings of every Typer app of ours.
PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until all replicas are ready.")]
Chip = Annotated[str | None, typer.Option(help="Chip for --topology auto (default: v5e).")]
ModelPath = Annotated[
    str | None, typer.Option(help="Model path to use instead of the one in config.json.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "--override", metavar="KEY=JSON", help="Override as for `sax publish`; repeatable."
    ),
]
Slots = Annotated[int | None, typer.Option(help="--slots of the model servers.")]
MaxContext = Annotated[
    str | None,
    typer.Option(
        "--max-context",
        "--max_context",
        metavar="TOKENS",
        help='--max_context of the model servers, or "auto".',
    ),
]
CheckpointSource = Annotated[
    str,
    typer.Argument(
        metavar="CHECKPOINT",
        help="A GGUF file, a Hugging Face folder, an Orbax or Pax checkpoint (also at gs:// or "
        "s3://), or what is fetched: ORG/NAME of a Hugging Face hub, hf://.",
    ),
]


def parse_overrides(pairs: Sequence[str]) -> dict[str, str]:
    """Parse KEY=JSON words. Raises InvalidRequest naming the wrong word."""
    overrides: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise InvalidRequest(
                f"{quoted(pair)} is not an override: write KEY=JSON, e.g. NUM_LAYERS=2"
            )
        try:
            json.loads(value)
        except ValueError:
            remedy = json_remedy(value, f"{key}='\"text\"'")
            raise InvalidRequest(f"{quoted(pair)}: {quoted(value)} is not JSON; {remedy}") from None
        overrides[key] = value
    return overrides


def read_file(name: str) -> bytes:
    """Return the bytes of a file; "-" reads stdin. Raises InvalidRequest."""
    if name == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(name).read_bytes()
    except OSError as exc:
        raise InvalidRequest(f"{quoted(name)} cannot be read: {exc.strerror}") from exc


def tokens_of(text: str | None) -> int | Literal["auto"] | None:
    """Parse `MaxContext`. Raises InvalidRequest."""
    if text is None or text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise InvalidRequest(
            f'--max-context is {quoted(text)}: give a number of tokens above 0, or "auto"',
            param="max-context",
        )
    return int(text)


def check_installed(ctx: typer.Context) -> None:
    if told := missing_model_server(f"`{ctx.command_path}`"):
        say(f"sax: {told}")
        raise typer.Exit(WRONG)


def fail(error: Exception, status: int) -> NoReturn:
    say(f"sax: {error}")
    raise typer.Exit(status) from None


def run_alone(
    command: Callable[..., None], name: str, arguments: Sequence[str] | None = None
) -> int:
    """Run a command as its own program (`python -m ...`) and return its exit status."""
    app = typer.Typer(**PLAIN)
    app.command()(command)
    try:
        app(None if arguments is None else list(arguments), prog_name=name)
    except SaxError as error:
        say(f"sax: {error}")
        return FAILED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


_SIGNS = {OK: "ok     ", WARNING: "warning", PROBLEM: "PROBLEM"}


def show_findings(findings: Sequence[Finding], as_json: bool) -> None:
    """Print findings on stdout, with a line for each remedy, or as JSON."""
    if as_json:
        sys.stdout.write(json.dumps([each.as_json() for each in findings], indent=2) + "\n")
        return
    lines: list[str] = []
    for each in findings:
        lines.append(f"{_SIGNS[each.level]}  {_line(each.about)}: {_line(each.text)}")
        if each.remedy and each.level != OK:
            lines.append(f"         -> {_line(each.remedy)}")
    counts = {level: sum(each.level == level for each in findings) for level in _SIGNS}
    lines.append(f"\n{counts[PROBLEM]} problems, {counts[WARNING]} warnings, {counts[OK]} ok")
    sys.stdout.write("\n".join(lines) + "\n")


def _line(text: str) -> str:
    """Put text from a cluster or a machine on one line and escape its control characters."""
    return printable(" ".join(text.split()))


_KEPT = "\n\t"


def printable(text: str) -> str:
    """Escape control characters as \\xNN; keep newlines and tabs.

    Text from elsewhere, such as a model's or a file's name, must not steer the terminal.
    """
    return "".join(
        character
        if character in _KEPT or not _is_control(character)
        else f"\\x{ord(character):02x}"
        for character in text
    )


def _is_control(character: str) -> bool:
    return ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0


def say(text: str) -> None:
    """Print one line on stderr: stdout carries results only."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align rows in columns two spaces apart; the first row holds the headings."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


def show_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout: rich on a terminal, aligned columns elsewhere.

    Plain (a pipe, a file, CI) means text and newlines only: no colours, no wrapping.
    """
    clean = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    if not sys.stdout.isatty():
        sys.stdout.write(aligned([headings, *clean]) + "\n")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in clean:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)
