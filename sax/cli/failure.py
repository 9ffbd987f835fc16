"""Failed commands print one line on stderr and set an exit code, without a traceback.

Exit codes: 0 success, 1 failure, 2 wrong command line, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from sax.command import FAILED, fail, say
from sax.errors import SaxError

INTERRUPTED = 130
DEBUG_VARIABLE = "SAX_DEBUG"


class ReportingGroup(TyperGroup):
    """Command group that turns errors into one-line messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SaxError as error:
            fail(error, FAILED)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def report_bug(error: Exception) -> int:
    """Report an unexpected error in one line; re-raise it if $SAX_DEBUG is set."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    say(
        f"sax: internal error, {type(error).__name__}: {error}. "
        f"Set {DEBUG_VARIABLE}=1 for the traceback, and please report it."
    )
    return FAILED
