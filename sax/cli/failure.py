"""Failed commands print one line on stderr, or JSON, and set an exit code, without a traceback.

Exit codes: 0 success, 1 failure, 2 wrong command line, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import typer
from typer.core import TyperGroup

from sax.command import FAILED, WRONG, expect_json, fail, tell, wants_json
from sax.errors import AdminUnavailable, Internal, InvalidRequest, SaxError

INTERRUPTED = 130
ADMIN_OPTION = "--admin"
DEBUG_VARIABLE = "SAX_DEBUG"


class ReportingGroup(TyperGroup):
    """Command group that turns errors into one-line messages and exit codes.

    Its own option --admin may stand behind a subcommand, too.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        expect_json(args)
        with _wrong_lines():
            return super().parse_args(ctx, admin_first(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            with _wrong_lines():
                return super().invoke(ctx)
        except SaxError as error:
            fail(_with_hint(error, ctx), FAILED)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _wrong_lines() -> Generator[None]:
    """Tell a wrong command line as JSON where that is asked for; else the parser tells it."""
    try:
        yield
    except Exception as error:
        # All errors of the parser have this, whichever package of Typer's versions defines them.
        told = getattr(error, "format_message", None)
        if told is None or not wants_json():
            raise
        fail(InvalidRequest(told()), getattr(error, "exit_code", WRONG))


def admin_first(args: Sequence[str]) -> list[str]:
    """Move --admin and its value before the subcommand; what is behind -- stays as it is."""
    end = args.index("--") if "--" in args else len(args)
    moved: list[str] = []
    kept: list[str] = []
    words = iter(args[:end])
    for word in words:
        if word == ADMIN_OPTION:
            moved += [word, *islice(words, 1)]
        elif word.startswith(f"{ADMIN_OPTION}="):
            moved.append(word)
        else:
            kept.append(word)
    return [*moved, *kept, *args[end:]]


def _with_hint(error: SaxError, ctx: Any) -> SaxError:
    """Say how to get a cell, if none answers and none was named."""
    if type(error) is not AdminUnavailable or ctx.obj:
        return error
    return AdminUnavailable(
        f"{error.text}; start a cell on this machine with `sax up`, or one that answers at once "
        "with `sax run MODEL`"
    )


def report_bug(error: Exception) -> int:
    """Report an unexpected error in one line; re-raise it if $SAX_DEBUG is set."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    tell(
        Internal(
            f"internal error, {type(error).__name__}: {error}. "
            f"Set {DEBUG_VARIABLE}=1 for the traceback, and please report it."
        )
    )
    return FAILED
