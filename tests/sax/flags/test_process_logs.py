"""Every flag about logging has its effect, or says that it has none."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from sax.errors import InvalidRequest
from sax.flags.parser import ServerParser
from sax.flags.process_logs import (
    IDLE_SWITCHES,
    IDLE_VALUES,
    ProcessLogs,
    add_log_flags,
    idle_sentence,
)
from tests.demo_model import ROOT
from tests.each_case import each_case

# A process, because logging is set up once in each.
_PROGRAM = """
import logging, sys
from sax.flags.parser import ServerParser
from sax.flags.process_logs import ProcessLogs, add_log_flags
parser = ServerParser("server")
add_log_flags(parser)
ProcessLogs.take_flags(vars(parser.parse_args(sys.argv[1:]))).start("server")
for name in ("server.room", "elsewhere"):
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logging.getLogger(name).log(level, "%s", logging.getLevelName(level).lower())
from sax.flags.last_lines import last_lines
print(*(f"{line['logger']} {line['text']}" for line in last_lines()), sep="\\n")
"""


def ran(*flags: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *flags], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


def logged(*flags: str) -> list[str]:
    """What of five lines each of two loggers the process logged, e.g. "server.room debug"."""
    done = ran(*flags)
    return [line.split(" ", 3)[3].replace(":", "", 1) for line in done.stderr.splitlines()]


def both(*levels: str) -> list[str]:
    return [f"{name} {level}" for name in ("server.room", "elsewhere") for level in levels]


USUAL = both("info", "warning", "error", "critical")


@pytest.mark.extended
@each_case(
    "flags, lines",
    [
        ("", USUAL),
        ("--v=3", ["server.room debug", *USUAL]),
        ("-v 1", ["server.room debug", *USUAL]),
        ("--verbosity=-1", both("warning", "error", "critical")),
        ("--v=-2", both("error", "critical")),
        ("--vmodule=<str*=1", ["server.room debug", *USUAL]),
        ("--vmodule=server.r*=2,x=1", ["server.room debug", *USUAL]),
        ("--vmodule=*=0", USUAL),
        ("--logger_levels=elsewhere:ERROR", [*USUAL[:4], *USUAL[6:]]),
        ("--stderrthreshold=error", both("error", "critical")),
        ("--stderrthreshold=2", both("error", "critical")),
        ("--stderrthreshold=error --alsologtostderr", USUAL),
        ("--stderrthreshold=error -logtostderr=true", USUAL),
    ],
)
def test_a_flag_says_what_is_logged(flags: str, lines: list[str]) -> None:
    assert logged(*flags.split()) == lines


def test_a_file_has_what_stderr_has_not(tmp_path: Path) -> None:
    assert logged(f"--log_dir={tmp_path}", "--stderrthreshold=fatal") == both("critical")
    assert len((tmp_path / "server.log").read_text().splitlines()) == len(USUAL)


def test_the_last_lines_are_kept_for_operators_whatever_goes_to_stderr() -> None:
    assert ran("--stderrthreshold=fatal").stdout.splitlines() == USUAL


@each_case("name", [*IDLE_SWITCHES, *IDLE_VALUES])
def test_a_flag_without_a_meaning_is_taken_and_kept_for_a_word(name: str) -> None:
    parser = ServerParser("server")
    add_log_flags(parser)
    given = [f"--{name}"] if name in IDLE_SWITCHES else [f"-{name}=x"]
    made = ProcessLogs.take_flags(vars(parser.parse_args(given)))
    why = {**IDLE_SWITCHES, **IDLE_VALUES}[name]
    assert made == ProcessLogs(idle_flags=(idle_sentence(f"--{name}", why),))


def test_the_word_says_why() -> None:
    lines = logged("--logbuflevel=1", "--nopdb", "--noalsologtostderr")
    assert lines[0] == "server --logbuflevel changes nothing here: lines are written at once"
    assert lines[1].startswith("server --pdb changes nothing here: start the process with")
    assert lines[2].startswith("server logs go to stderr here, whatever")


@each_case(
    "flag, value",
    [
        ("vmodule", "a"),
        ("vmodule", "a=b"),
        ("logger_levels", "a"),
        ("logger_levels", "a:loud"),
        ("stderrthreshold", "loud"),
    ],
)
def test_a_bad_value_is_refused_by_its_flag(flag: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=f"--{flag} has ") as refused:
        ProcessLogs(**{flag: value})  # pyright: ignore[reportArgumentType]
    assert refused.value.param == flag


def test_a_folder_that_is_missing_is_refused(tmp_path: Path) -> None:
    root = logging.getLogger()
    level = root.level
    try:
        with pytest.raises(InvalidRequest, match="give a folder that exists"):
            ProcessLogs(log_dir=str(tmp_path / "none")).start("server")
    finally:
        root.setLevel(level)  # other tests of this process log as they did
