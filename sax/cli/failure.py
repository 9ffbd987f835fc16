"""How a command that fails ends: one clear line on stderr and an exit code, never a traceback.

Exit codes: 0 done, 1 it failed, 2 the command line is wrong, 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import os
from typing import Any

import typer
from typer.core import TyperGroup

from sax.cli.terminal import say
from sax.errors import SaxError

FAILED = 1
INTERRUPTED = 130
DEBUG_VARIABLE = "SAX_DEBUG"


class ReportingGroup(TyperGroup):
    """The command group that turns errors into lines and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SaxError as error:
            say(f"sax: {error.text}")
            raise typer.Exit(FAILED) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def report_bug(error: Exception) -> int:
    """One line for an error nobody foresaw; the whole of it if $SAX_DEBUG is set."""
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    say(
        f"sax: internal error, {type(error).__name__}: {error}. "
        f"Set {DEBUG_VARIABLE}=1 to see where, and report it."
    )
    return FAILED
