"""The `sax` command: registers all subcommands."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from sax.cli.commands.acls import getacl, setacl, token
from sax.cli.commands.bench import bench
from sax.cli.commands.chat import chat
from sax.cli.commands.history import events, logs, rollback, versions
from sax.cli.commands.launch import launch
from sax.cli.commands.listing import ls, status
from sax.cli.commands.publishing import abort, promote, publish, unpublish, update
from sax.cli.commands.requests import custom, generate
from sax.cli.commands.saxml_shim import saxml_shim
from sax.cli.commands.saxutil import register as register_saxutil
from sax.cli.commands.sounds import transcribe
from sax.cli.commands.vectors import classify, embed, gradient, rerank
from sax.cli.commands.wait import wait, watch
from sax.cli.commands.weights import pause, resume, sleep, update_weights, wake, weights
from sax.cli.doctor.command import doctor
from sax.cli.failure import ReportingGroup, report_bug
from sax.cli.installation import installation
from sax.cli.local.demo import demo
from sax.cli.local.run import run
from sax.cli.local.up import up
from sax.command import PLAIN, CommandLine
from sax.config import ADDRESS_VARIABLE, check_addresses

_HELP = """Serve JAX models from a laptop to many TPU slices.

\b
Chat with a model, from nothing:
  sax run HuggingFaceTB/SmolLM2-135M-Instruct

\b
Start a cell on this machine:
  sax up                                                   # in one terminal
  sax publish /sax/test/smollm2 llama MODEL.gguf --wait    # in another
  sax generate /sax/test/smollm2 "The sky is"

Every command has --help with examples.
"""

_SETTINGS: dict[str, Any] = {**PLAIN, "add_completion": True}

app = CommandLine(
    name="sax",
    help=_HELP,
    cls=ReportingGroup,
    no_args_is_help=True,
    **_SETTINGS,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(installation())
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    admin: Annotated[
        str | None,
        typer.Option(
            envvar=ADDRESS_VARIABLE,
            metavar="HOST:PORT,...",
            help="Address of the cell's admin server; separate several with commas.",
            show_default="127.0.0.1:10000",
        ),
    ] = None,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_show_version,
            is_eager=True,
            help="Print what is installed.",
        ),
    ] = False,
) -> None:
    ctx.obj = None if admin is None else check_addresses(admin, "--admin")


_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": False}

app.command(context_settings=_PASS_ON)(up)
app.command(context_settings=_PASS_ON)(demo)
app.command(context_settings=_PASS_ON)(launch)
for command in (
    publish,
    update,
    update_weights,
    weights,
    pause,
    resume,
    sleep,
    wake,
    promote,
    abort,
    rollback,
    unpublish,
    versions,
    events,
    logs,
    ls,
    status,
    wait,
    watch,
    run,
    generate,
    chat,
    embed,
    rerank,
    classify,
    gradient,
    transcribe,
    custom,
    bench,
    doctor,
    token,
    getacl,
    setacl,
):
    app.command()(command)
register_saxutil(app)
app.command("saxml-shim")(saxml_shim)
# A distribution that was installed under an older name, too, names the same functions again.
for point in {each.value: each for each in entry_points(group="sax.commands")}.values():
    point.load()(app)


def main() -> None:
    try:
        app(prog_name="sax")
    except Exception as error:
        sys.exit(report_bug(error))
