"""Records what a real cell answers, and compares: so that a refactor changes nothing.

    python -m tests.tools.answers --record FILE.json
    python -m tests.tools.answers --compare FILE.json    exits 1 if an answer differs

A cell with a model of each kind, in float32, is asked one question after the other: every field of
`sax/fields/table.py` at both ends and in the middle of its bounds, and wrongly, on every route that
has it; images, sounds, tools, beams, scores and adapters; every documented path; and every call of
the SDK and of Saxml's classes. Times, ids and addresses are left out, floats have 4 digits. Records
of different types of CPU differ in more than that: make both on one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sax.client import Client
from tests.demo_model import ROOT, demo_model
from tests.end_to_end.cell import Cell
from tests.tools.answers.calls import answer_of, calls
from tests.tools.answers.canonical import reply_of
from tests.tools.answers.models import running
from tests.tools.answers.questions import Question, questions
from tests.tools.answers.record import differences, folded, unfolded


def answers(folder: Path) -> dict[str, Any]:
    """Return every question's answer by the question's name."""
    told: dict[str, Any] = {}
    with running(folder) as cell:
        hidden = {str(folder): "<folder>", str(demo_model()): "<demo>", str(ROOT): "<root>"}
        os.environ["SAX_ADMIN"] = cell.plan.admin_address  # where Saxml's classes look
        for question in _asked(cell):
            if question.name not in told:
                sent = cell.http.request(question.method, question.path, **question.sent)
                told[question.name] = reply_of(sent, hidden)
                _say(len(told))
        with Client(cell.plan.admin_address) as client:
            for name, call in calls(client):
                if name not in told:
                    told[name] = answer_of(call, hidden)
                    _say(len(told))
    return told


def _asked(cell: Cell) -> Iterator[Question]:
    yield from questions(cell.http.get("/openapi.json").json())
    for name, port in (("admin", cell.plan.status_port), ("model", cell.plan.metrics_port)):
        url = f"http://127.0.0.1:{port}/metrics"
        yield Question(f"GET /metrics of the {name} server", "GET", url, {})


def _say(number: int) -> None:
    if number % 100 == 0:
        print(f"{time.strftime('%H:%M:%S')} {number} answers", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.tools.answers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--record", type=Path, metavar="FILE")
    either.add_argument("--compare", type=Path, metavar="FILE")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sax-answers-") as folder:
        told = answers(Path(folder))
    if flags.record:
        flags.record.write_text(json.dumps(folded(told), indent=0, ensure_ascii=False) + "\n")
        print(f"{len(told)} answers")
        return 0
    differing = differences(unfolded(json.loads(flags.compare.read_text())), told)
    print(*differing, f"{len(differing)} of {len(told)} answers differ", sep="\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
