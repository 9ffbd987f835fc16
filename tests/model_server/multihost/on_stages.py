"""Plays the same steps on one mesh and on stages of fake devices, hosts' and islands'; a process of
its own.

The number of devices is fixed before jax starts, so tests call this as a script:

    python -m tests.model_server.multihost.on_stages RESULTS.json CASE:STAGES:1x1x2 ...

RESULTS.json holds, under each of these names, the tokens and log-probabilities of all, and the
answers of a beam search if the model has any; or why there are none.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from model_server.engine.running.ops import Runner
from model_server.engine.types import BeamSettings
from tests.model_server.engine.parts.beam_searches import answers_of, search_for
from tests.model_server.multihost.played import numbers_of, play, steps, tokens_of
from tests.model_server.multihost.staged import Case, layouts_of


def compared(name: str, stages: int, sizes: tuple[int, int, int]) -> dict[str, Any]:
    case = Case(name)
    with case.closes:
        layouts = layouts_of(stages, sizes)
        one, other = case.lanes(stages, layouts)
        runners = {
            "whole": case.whole(sizes),
            "staged": case.staged(stages, layouts),
            "one lane": one,
            "other lane": other,
        }
        results = {
            kind: play(runner, [*steps(), *steps(edited=True)]) for kind, runner in runners.items()
        }
        searches = not case.recipe.recurrent
        answers = {kind: searched(each) if searches else [] for kind, each in runners.items()}
        for runner in runners.values():
            runner.close()
    return {
        kind: {
            "tokens": tokens_of(each),
            "numbers": numbers_of(each).tolist(),
            "answers": answers[kind],
        }
        for kind, each in results.items()
    }


def searched(runner: Runner) -> list[tuple[int, ...]]:
    """The answers of a beam search, best first."""
    beams = BeamSettings(4, 0.8, min_tokens=2)
    asked = search_for(tuple(range(20, 31)), beams, frozenset({5, 41}), 7)
    (found,) = answers_of(runner, [asked])
    return [each.tokens for each in found]


def main() -> None:
    path, *runs = sys.argv[1:]
    found: dict[str, Any] = {}
    for run in runs:
        name, stages, sizes = run.split(":")
        replica, data, inner = map(int, sizes.split("x"))
        try:
            found[run] = compared(name, int(stages), (replica, data, inner))
        except Exception:
            found[run] = {"error": traceback.format_exc()}
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
