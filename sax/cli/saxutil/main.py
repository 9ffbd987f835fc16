"""The `saxutil` command: Saxml's command line, its flags as Go programs take them.

Exit statuses are Saxml's: 0 success, 1 failure, 2 a wrong command line. Errors are one line on
stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sax.cli.failure import INTERRUPTED, report_bug
from sax.cli.saxutil import admin_verbs, model_verbs
from sax.cli.saxutil.go_flags import (
    GoFlag,
    ParsedFlags,
    WrongUsage,
    duration_flag,
    parse_flags,
    switch,
    text_flag,
)
from sax.cli.saxutil.verb import SaxutilCall, SaxutilVerb
from sax.command import FAILED, WRONG, say
from sax.errors import DeadlineExceeded, SaxError
from sax.format import quoted

GLOBAL_FLAGS = (
    text_flag("sax_root", "Folder or bucket where cells are found; default: $SAX_ROOT."),
    duration_flag("sax_timeout", "Longest time a command may take, e.g. 600s.", 60.0),
)
# Those of Go's logging library, which scripts pass: this program logs nothing.
_LOGGING_FLAGS = (
    switch("alsologtostderr", "Taken, without effect."),
    switch("logtostderr", "Taken, without effect."),
    *(
        text_flag(name, "Taken, without effect.")
        for name in ("log_backtrace_at", "log_dir", "stderrthreshold", "v", "vmodule")
    ),
)


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    try:
        if words and words[0] in _HELP:
            words = ["help"]
        whole = parse_flags((*GLOBAL_FLAGS, *_LOGGING_FLAGS), words)
        if not whole.words:
            raise WrongUsage(_usage())
        name, rest = whole.words[0], whole.words[1:]
        if name in _ABOUT:
            print(_about(name, rest))
            return 0
        if rest and rest[0] in _HELP:
            print(_about("help", [name]))
            return 0
        _run_verb(name, rest, whole)
    except WrongUsage as error:
        say(f"saxutil: {error}")
        return WRONG
    except DeadlineExceeded as error:
        say(f"saxutil: {error}; --sax_timeout=600s would give it ten minutes")
        return FAILED
    except SaxError as error:
        say(f"saxutil: {error}")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _run_verb(name: str, words: Sequence[str], whole: ParsedFlags) -> None:
    verb = VERBS.get(name)
    if verb is None:
        raise WrongUsage(f"{quoted(name)} is no command; `saxutil commands` lists them")
    flags = parse_flags(verb.flags, words)
    verb.check(flags.words)
    verb.run(SaxutilCall(flags, whole.values["sax_root"], whole.values["sax_timeout"]))


def _about(name: str, words: Sequence[str]) -> str:
    """Return the text of `help`, `commands` or `flags`, of one command or of all."""
    if name == "commands":
        return "\n".join([*_ABOUT, *VERBS])
    if not words:
        return _usage() if name == "help" else _flag_lines(GLOBAL_FLAGS)
    verb = VERBS.get(words[0])
    if verb is None:
        raise WrongUsage(f"{quoted(words[0])} is no command; `saxutil commands` lists them")
    return _flag_lines(verb.flags) if name == "flags" else _help(verb)


def _help(verb: SaxutilVerb) -> str:
    head = f"saxutil {verb.name} {verb.usage}\n  {verb.synopsis}"
    return f"{head}\n{_flag_lines(verb.flags)}" if verb.flags else head


def _usage() -> str:
    lines = [f"  {verb.name:18} {verb.synopsis}" for verb in VERBS.values()]
    return "\n".join(
        [
            "usage: saxutil [--sax_root=PLACE] [--sax_timeout=60s] COMMAND [FLAGS] WORDS",
            "",
            *lines,
            "",
            "`saxutil help COMMAND` and `saxutil flags COMMAND` tell of one.",
        ]
    )


def _flag_lines(flags: Sequence[GoFlag]) -> str:
    return "\n".join(f"  -{flag.name}={_default(flag)}: {flag.help}" for flag in flags)


def _default(flag: GoFlag) -> str:
    return str(flag.default).lower() if flag.is_switch else str(flag.default)


_HELP = ("-h", "-help", "--help")
_ABOUT = ("help", "flags", "commands")
VERBS = {verb.name: verb for verb in (*admin_verbs.VERBS, *model_verbs.VERBS)}


def main() -> None:
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = FAILED
    except Exception as error:
        status = report_bug(error)
    sys.exit(status)
