"""Parts that the commands of `sax` share, in whichever package a command lives.

Commands outside `sax.cli` are found through the entry-point group `sax.commands`, so their packages
are not imported here, and the libraries that they compute with need not be installed.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand

from sax.errors import InvalidRequest, SaxError, Unavailable, wire_name
from sax.finding import OK, PROBLEM, WARNING, Finding, worst
from sax.format import quoted
from sax.host import missing_model_server
from sax.overrides.value_rule import json_remedy

FAILED, WRONG = 1, 2  # exit statuses: an error, bad arguments


def _hyphens(name: str) -> str:
    """Take the servers' spelling of a flag, --max_context, for the option --max-context."""
    return name.replace("_", "-")


# Plain text and short names for help: settings of every Typer app of ours.
PLAIN: dict[str, Any] = {
    "rich_markup_mode": None,
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "context_settings": {
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": _hyphens,
    },
}

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
        fail(Unavailable(told), WRONG)


JSON_FLAG = "--json"
_AsJson = Annotated[
    bool, typer.Option(JSON_FLAG, help="Print JSON, for programs; errors, too, and on stdout.")
]
_wanted: ContextVar[bool] = ContextVar("json", default=False)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command found or did, for programs and for people.

    value: for JSON, or a function that finds it. text: a line for people, or a function that
    prints it. status: the exit status.
    """

    value: Any
    text: str | Callable[[], object]
    status: int = 0


Results = CommandResult | Generator[CommandResult]


class GroupedCommand(TyperCommand):
    """Lists the options of a panel under its title, after the others."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            if (row := param.get_help_record(ctx)) is None:
                continue
            kind = "Arguments" if param.param_type_name == "argument" else "Options"
            sections.setdefault(getattr(param, "rich_help_panel", None) or kind, []).append(row)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class CommandLine(typer.Typer):
    """An app whose commands return their results, and all take --json.

    A command returns one result, which is one JSON value, or yields several as they come, each of
    which is a line of JSON. With --json nothing else is on stdout, and an error is an object there.
    """

    def command(self, *args: Any, **settings: Any) -> Callable[[Any], Any]:
        add = super().command(*args, **{"cls": GroupedCommand, **settings})
        return lambda command: add(prints_results(command))


def prints_results(command: Callable[..., Results]) -> Callable[..., None]:
    """Return the command with the option --json, which prints what it returns or yields."""
    own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(as_json: bool, **given: Any) -> None:
        _wanted.set(as_json)
        results = command(**given)
        if isinstance(results, CommandResult):
            show_result(results, indent=2)
            return
        with closing(results):  # an error of one ends what the command holds open
            for each in results:
                show_result(each)

    kind = inspect.Parameter.KEYWORD_ONLY
    option = inspect.Parameter("as_json", kind, default=False, annotation=_AsJson)
    run.__signature__ = inspect.Signature([*own, option])  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {each.name: each.annotation for each in (*own, option)}
    return run


def show_result(result: CommandResult, indent: int | None = None) -> None:
    """Print a result in the form that was asked for; a status of its own ends the command."""
    if wants_json():
        value = result.value() if callable(result.value) else result.value
        sys.stdout.write(json.dumps(value, indent=indent) + "\n")
    elif isinstance(result.text, str):
        sys.stdout.write(printable(result.text) + "\n")
    else:
        result.text()
    sys.stdout.flush()
    if result.status:
        raise typer.Exit(result.status)


def wants_json() -> bool:
    """Return True if the command that runs was given --json."""
    return _wanted.get()


def expect_json(arguments: Sequence[str]) -> None:
    """Look for --json before a command line is parsed: errors in it are told as it asks."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    _wanted.set(JSON_FLAG in arguments[:end])


def fail(error: Exception, status: int) -> NoReturn:
    """Tell an error, on one line of stderr or as JSON on stdout, and end with the status."""
    tell(error)
    raise typer.Exit(status) from None


def tell(error: Exception) -> None:
    """Print an error: a line on stderr, or with --json {"error": {"type", "text", ...}}."""
    if not wants_json():
        say(f"sax: {error}")
        return
    told: dict[str, Any] = {"type": type(error).__name__, "text": str(error)}
    if isinstance(error, SaxError):
        told["type"] = wire_name(error)
        more = {"param": error.param, "retry_after_s": error.retry_after_s}
        told |= {name: value for name, value in more.items() if value is not None}
    sys.stdout.write(json.dumps({"error": told}) + "\n")
    sys.stdout.flush()


def run_alone(
    command: Callable[..., Results], name: str, arguments: Sequence[str] | None = None
) -> int:
    """Run a command as its own program (`python -m ...`) and return its exit status."""
    app = CommandLine(**PLAIN)
    app.command()(command)
    expect_json(sys.argv[1:] if arguments is None else arguments)
    try:
        app(None if arguments is None else list(arguments), prog_name=name)
    except SaxError as error:
        tell(error)
        return FAILED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    return 0


_SIGNS = {OK: "ok     ", WARNING: "warning", PROBLEM: "PROBLEM"}


def findings_result(findings: Sequence[Finding]) -> CommandResult:
    """Return findings, with a line for each remedy; the status is 1 if one is a problem."""
    lines: list[str] = []
    for each in findings:
        lines.append(f"{_SIGNS[each.level]}  {_line(each.about)}: {_line(each.text)}")
        if each.remedy and each.level != OK:
            lines.append(f"         -> {_line(each.remedy)}")
    counts = {level: sum(each.level == level for each in findings) for level in _SIGNS}
    lines.append(f"\n{counts[PROBLEM]} problems, {counts[WARNING]} warnings, {counts[OK]} ok")
    found = [each.as_json() for each in findings]
    return CommandResult(found, "\n".join(lines), FAILED if worst(findings) == PROBLEM else 0)


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


_READABLE = 14  # columns of a terminal below which a cell is no longer read well
_LOOKS = {"failed": "bold red", "ready": "green", "loaded": "green"}
_OF_STATES = ("STATE", "MODELS")


def show_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str] = ()
) -> None:
    """Print a table on stdout: rich on a terminal, aligned columns elsewhere.

    Plain (a pipe, a file, CI) means text and newlines only: no colours, no wrapping, all columns.
    least: headings of columns that a narrow terminal does without, the first of them first.
    """
    clean = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    if not sys.stdout.isatty():
        sys.stdout.write(aligned([headings, *clean]) + "\n")
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    known = [heading for heading in least if heading in headings]
    dropped = dropped_columns([headings, *clean], known, console.width)
    shown = [place for place, heading in enumerate(headings) if heading not in dropped]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place in shown:
        table.add_column(headings[place], overflow="fold")
    for row in clean:
        table.add_row(*(_styled(row[place], headings[place]) for place in shown))
    console.print(table)
    if dropped:
        console.print(f"(not shown: {', '.join(dropped)}; a wider terminal or --json)", style="dim")


def dropped_columns(
    table: Sequence[Sequence[str]], least: Sequence[str], width: int
) -> Sequence[str]:
    """Return the columns of `least` that a table does without, to be readable in `width`."""
    widths = {cells[0]: max(map(len, cells)) for cells in zip(*table, strict=True)}
    for count in range(len(least) + 1):
        kept = [min(size, _READABLE) for name, size in widths.items() if name not in least[:count]]
        if sum(kept) + 2 * (len(kept) - 1) <= width:
            return least[:count]
    return least


def _styled(cell: str, heading: str) -> Any:
    from rich.text import Text

    text = Text(cell)
    for word, style in _LOOKS.items() if heading in _OF_STATES else ():
        text.highlight_words([word], style)
    return text


def show_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values on stdout; on a terminal a state looks as in tables."""
    lines = [(f"{name + ':':12} {printable(value)}", name.upper()) for name, value in facts]
    if not sys.stdout.isatty():
        sys.stdout.writelines(f"{line}\n" for line, _ in lines)
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line, heading in lines:
        console.print(_styled(line, heading), soft_wrap=True)
