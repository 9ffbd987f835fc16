"""Breaks lines of product code, one at a time, and counts how many the tests catch.

    git clone . /tmp/broken && cd /tmp/broken && make dev && cd -
    python -m tests.tools.mutation draw   --clone /tmp/broken --seed 39 --breaks 60 --file run.json
    python -m tests.tools.mutation record --clone /tmp/broken --file run.json -- -m "not nightly"
    python -m tests.tools.mutation run    --clone /tmp/broken --file run.json -- -m "not nightly"
    python -m tests.tools.mutation report --file run.json

`draw` chooses the lines. `record` runs the tests once with a probe at each line, which tells the
test files that run it. `run` puts in one break after another and runs those files, the nearest
first, until a test fails; it goes on where it was stopped. What stands behind -- is pytest's. The
clone is changed and put back with git.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

from tests.tools.mutation import breaks, probe

WORKERS = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["draw", "record", "run", "report"])
    parser.add_argument("--file", type=Path, required=True, help="what is known of the breaks")
    parser.add_argument("--clone", type=Path, help="a clone with its .venv; it is changed")
    parser.add_argument("--seed", type=int, default=39)
    parser.add_argument("--breaks", type=int, default=60, dest="count")
    parser.add_argument("--limit", type=float, default=900, help="seconds of tests per break")
    parser.add_argument("--name", default="all targets", help="of the tests that `run` chooses from")
    own, pytest_flags = _split(sys.argv[1:])
    flags = parser.parse_args(own)
    if flags.what == "draw":
        drawn = [asdict(each) for each in breaks.draw(flags.clone, flags.count, flags.seed)]
        _write(flags.file, {"breaks": drawn, "hits": {}, "seconds": {}, "outcomes": {}})
    elif flags.what == "record":
        _record(flags.file, flags.clone, pytest_flags)
    elif flags.what == "run":
        _run(flags, pytest_flags)
    else:
        _report(json.loads(flags.file.read_text()))


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    cut = arguments.index("--")
    return arguments[:cut], arguments[cut + 1 :]


def _record(file: Path, clone: Path, pytest_flags: list[str]) -> None:
    known = json.loads(file.read_text())
    drawn = [breaks.Break(**each) for each in known["breaks"]]
    hits, junit = file.with_suffix(".hits").absolute(), file.with_suffix(".xml").absolute()
    probe.insert(clone, drawn)
    try:
        _pytest(clone, [*WORKERS, "-q", f"--junitxml={junit}", *pytest_flags], hits=hits)
    finally:
        _restore(clone)
        (clone / probe.MODULE).unlink()
    for number, files in probe.files_that_hit(hits.read_text().splitlines()).items():
        known["hits"][str(number)] = sorted({*known["hits"].get(str(number), []), *files})
    known["seconds"] |= _seconds(junit, clone)
    _write(file, known)


def _run(flags: argparse.Namespace, pytest_flags: list[str]) -> None:
    known = json.loads(flags.file.read_text())
    outcomes = known["outcomes"].setdefault(flags.name, {})
    for number, each in enumerate(breaks.Break(**fields) for fields in known["breaks"]):
        if str(number) in outcomes:
            continue
        files = _nearest_first(each.path, known["hits"].get(str(number), []), known["seconds"])
        began = time.monotonic()
        outcome = _outcome(flags.clone, each, files, pytest_flags, flags.limit)
        outcomes[str(number)] = outcome
        _write(flags.file, known)
        took = time.monotonic() - began
        print(f"{number:3} {took:5.0f} s  {each.path}:{each.line}  {outcome}", flush=True)


def _outcome(
    clone: Path, each: breaks.Break, files: list[str], pytest_flags: list[str], limit: float
) -> str:
    """Name the first test that fails with the break, and passes without it."""
    files = [file for file in files if (clone / file).exists()]
    if not files:
        return "not run by any test"
    ignored: list[str] = []
    while True:
        breaks.apply(clone, each)
        try:
            deselected = [f"--deselect={name}" for name in ignored]
            flags = [*WORKERS, "-q", "-x", "-rfE", *pytest_flags, *deselected, *files]
            code, printed = _pytest(clone, flags, limit=limit)
        finally:
            _restore(clone)
        if code is None:
            return "out of time"
        if code in (0, 5):
            return "survived"
        failed = _failed(printed)
        if not failed:
            return f"caught: pytest ended with {code}"
        if _pytest(clone, ["-q", "-p", "no:cacheprovider", *pytest_flags, failed])[0] != 1:
            return f"caught by {failed}"
        ignored.append(failed)


def _failed(printed: str) -> str:
    lines = printed.splitlines()
    summary = [line.split(" ", 1)[1] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return summary[0].split(" - ")[0] if summary else ""


def _nearest_first(path: str, files: list[str], seconds: dict[str, float]) -> list[str]:
    """The mirror of the broken file, then its room, then whatever is quick."""
    parts = ("tests", *Path(path).with_suffix("").parts)

    def distance(file: str) -> tuple[int, float]:
        place = Path(file)
        there = (*place.parts[:-1], place.stem.removeprefix("test_"))
        shared = next(
            (at for at, (one, two) in enumerate(zip(parts, there, strict=False)) if one != two),
            min(len(parts), len(there)),
        )
        return -shared, seconds.get(file, 0)

    return sorted(files, key=distance)


def _seconds(junit: Path, clone: Path) -> dict[str, float]:
    """Seconds per test file."""
    sums: defaultdict[str, float] = defaultdict(float)
    for case in ElementTree.parse(junit).iter("testcase"):
        parts = case.get("classname", "").split(".")
        while parts and not (clone / ("/".join(parts) + ".py")).is_file():
            parts.pop()
        sums["/".join(parts) + ".py"] += float(case.get("time", 0))
    return dict(sums)


def _pytest(
    clone: Path, flags: list[str], *, limit: float | None = None, hits: Path | None = None
) -> tuple[int | None, str]:
    """Run pytest in the clone, with the clone's code; None for out of time."""
    environment = os.environ | {"PYTHONPATH": str(clone.absolute())}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if hits is not None:
        environment[probe.HITS] = str(hits)
    command = [str(clone.absolute() / ".venv" / "bin" / "python"), "-m", "pytest", *flags]
    process = subprocess.Popen(
        command,
        cwd=clone,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        process.communicate()
        return None, ""
    return process.returncode, printed


def _restore(clone: Path) -> None:
    subprocess.run(["git", "-C", str(clone), "checkout", "-q", "--", "."], check=True)


def _report(known: dict) -> None:
    for name, outcomes in known["outcomes"].items():
        caught = sum(outcome.startswith("caught") for outcome in outcomes.values())
        print(f"{name}: {caught} of {len(outcomes)} caught")
        for number, outcome in outcomes.items():
            each = known["breaks"][int(number)]
            if not outcome.startswith("caught"):
                where = f"{each['path']}:{each['line']}"
                print(f"  {outcome}: {where}  {each['before'].strip()}  ->  {each['after'].strip()}")


def _write(file: Path, known: dict) -> None:
    file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
