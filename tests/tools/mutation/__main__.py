"""Breaks lines of product code, one at a time, and counts how many the tests catch.

    git clone . /tmp/broken && make -C /tmp/broken dev model
    python -m tests.tools.mutation draw --clone /tmp/broken --seed 39 --breaks 60 --file run.json
    python -m tests.tools.mutation run --clone /tmp/broken --file run.json --name 'make test' \\
        -- -m quick
    python -m tests.tools.mutation run --clone /tmp/broken --file run.json -- -m 'not nightly'
    python -m tests.tools.mutation report --file run.json

`draw` chooses the lines. `run` puts in one break after another and runs the test files that import
the broken one, however far, the nearest first, until a test fails or the time is over; a failure
counts if the test passes without the break. What stands behind -- is pytest's. It goes on where it
was stopped. The clone is changed and put back with git.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from functools import cache
from pathlib import Path
from unittest import mock

from tests import targets
from tests.tools.mutation import breaks

_MODELS = "model_server/models/"
_FAMILIES = (
    "tests/model_server/models/test_families.py",
    "tests/model_server/models/media/test_media_families.py",
)
_PLAIN = ["-q", "-n", "0", "-p", "no:cacheprovider", "-rfE"]


def main() -> None:
    own, pytest_flags = _split(sys.argv[1:])
    flags = _parser().parse_args(own)
    if flags.what == "draw":
        drawn = [asdict(each) for each in breaks.draw(flags.clone, flags.count, flags.seed)]
        _write(flags.file, {"breaks": drawn, "outcomes": {}})
    elif flags.what == "run":
        _run(flags, pytest_flags)
    else:
        _report(json.loads(flags.file.read_text()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tools.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=["draw", "run", "report"])
    parser.add_argument("--file", type=Path, required=True, help="the breaks and their outcomes")
    parser.add_argument("--clone", type=Path, help="a clone with its .venv, which is changed")
    parser.add_argument("--seed", type=int, default=39)
    parser.add_argument("--breaks", type=int, default=60, dest="count")
    parser.add_argument("--limit", type=float, default=120, help="seconds of tests per break")
    parser.add_argument("--name", default="all targets", help="what the outcomes are called")
    parser.add_argument("--only-missed-by", metavar="NAME", help="leave out what NAME caught")
    return parser


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    cut = arguments.index("--")
    return arguments[:cut], arguments[cut + 1 :]


def _run(flags: argparse.Namespace, pytest_flags: list[str]) -> None:
    known = json.loads(flags.file.read_text())
    outcomes = known["outcomes"].setdefault(flags.name, {})
    already = known["outcomes"].get(flags.only_missed_by, {})
    for number, each in enumerate(breaks.Break(**fields) for fields in known["breaks"]):
        if str(number) in outcomes:
            continue
        outcome = already.get(str(number), "")
        began = time.monotonic()
        if not outcome.startswith("caught"):
            outcome = _outcome(flags.clone.absolute(), each, pytest_flags, flags.limit)
        outcomes[str(number)] = outcome
        _write(flags.file, known)
        took = time.monotonic() - began
        print(f"{number:3} {took:5.0f} s  {each.path}:{each.line}  {outcome}", flush=True)


def _outcome(clone: Path, each: breaks.Break, pytest_flags: list[str], limit: float) -> str:
    """Name the first test that fails with the break, and passes without it."""
    files = _nearest_first(clone, each.path)
    ignored: list[str] = []
    end = time.monotonic() + limit
    while files:
        breaks.apply(clone, each)
        try:
            deselected = [f"--deselect={name}" for name in ignored]
            flags = [*_PLAIN, "-x", *pytest_flags, *deselected, *files]
            code, printed = _pytest(clone, flags, end - time.monotonic())
        finally:
            subprocess.run(["git", "-C", str(clone), "checkout", "-q", "--", "."], check=True)
        if code is None:
            return "survived the tests that fit in the time"
        if code in (0, 5):
            return "survived"
        failed = _failed(printed)
        if not failed:
            return f"caught: pytest ended with {code}"
        if _pytest(clone, [*_PLAIN, *pytest_flags, failed], limit)[0] in (0, 4, 5):
            return f"caught by {failed}"
        ignored.append(failed)
    return "no test runs it"


def _failed(printed: str) -> str:
    """Return the first test of pytest's summary; lines of a captured log can begin as it does."""
    found = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", printed, re.MULTILINE)
    return found[1] if found else ""


def _nearest_first(clone: Path, path: str) -> list[str]:
    """The test files that reach a product file: its mirror, its room, ..., whole cells last.

    Behind the mirror of a file of models come the tests of every family, which are found by name.
    """
    target = ("tests", *Path(path).with_suffix("").parts)

    def distance(file: str) -> tuple[bool, bool, int, int]:
        place = Path(file)
        parts = (*place.parts[:-1], place.stem.removeprefix("test_"))
        pairs = enumerate(zip(target, parts, strict=False))
        shared = next((at for at, (one, two) in pairs if one != two), min(len(target), len(parts)))
        early = shared == len(target) or file in families
        return "end_to_end" in place.parts, not early, -shared, len(parts)

    families = _FAMILIES if path.startswith(_MODELS) else ()
    room = f"tests/{Path(path).parent.as_posix()}/"
    started = (room, "tests/end_to_end/")  # these may run it in a process that they start
    reach = _reach(clone)
    files = [
        file
        for file, reached in reach.items()
        if path in reached or file.startswith(started) or file in families
    ]
    return sorted(files, key=distance)


@cache
def _reach(clone: Path) -> dict[str, set[str]]:
    """Test file -> every file of the project that it can import, lazily or not."""
    with mock.patch.object(targets, "ROOT", clone):
        files = (path.relative_to(clone).as_posix() for path in clone.glob("tests/**/test_*.py"))
        return {file: targets.reached(file, lazily=True) for file in files}


def _pytest(clone: Path, flags: list[str], limit: float) -> tuple[int | None, str]:
    """Run pytest in the clone, on the clone's code; None: it did not end in time."""
    environment = os.environ | {"PYTHONPATH": str(clone)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    process = subprocess.Popen(
        [str(clone / ".venv" / "bin" / "python"), "-m", "pytest", *flags],
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=max(limit, 1))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        return None, ""
    return process.returncode, printed


def _report(known: dict) -> None:
    for name, outcomes in known["outcomes"].items():
        caught = sum(outcome.startswith("caught") for outcome in outcomes.values())
        print(f"{name}: {caught} of {len(outcomes)} caught")
        for number, outcome in outcomes.items():
            each = known["breaks"][int(number)]
            if not outcome.startswith("caught"):
                change = f"{each['before'].strip()}  ->  {each['after'].strip()}"
                where = f"{each['path']}:{each['line']}"
                print(f"  {where}  {change}: {outcome}")


def _write(file: Path, known: dict) -> None:
    file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
