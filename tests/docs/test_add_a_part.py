"""docs/how_to/add_a_part.md builds a part that works, beside a core that names none."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent
from typing import Any

from model_server.engine.hooks import SequenceHooks
from model_server.engine.limits import EngineLimits
from model_server.engine.registry import PARTS, new_sequence
from model_server.engine.request import EngineRequest
from model_server.engine.scheduler import Scheduler
from tests.model_server.engine.fake_runner import GREEDY, FakeRunner, next_token

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how_to" / "add_a_part.md").read_text()
ENGINE = ROOT / "model_server" / "engine"
LIMITS = EngineLimits(
    slots=2, pages=40, page_size=4, max_context=64, token_budget=10, max_logit_rows=4
)
_END = 96
_NOUNS = ("beam", "hypothes", "image", "grammar", "draft", "score", "longrope", "trace")


def _names_of_the_page() -> dict[str, Any]:
    """Run the page's code, but for the line that belongs into the registry.

    Methods stand flush left, as a formatter has them.
    """
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[:-1]
    whole = [indent(each, "    ") if each.startswith("def ") else each for each in blocks]
    names: dict[str, Any] = {"__name__": "a_part"}
    exec(compile("\n".join(whole), "add_a_part.md", "exec"), names)
    return names


def _answers(requests: list[EngineRequest], part: Any) -> list[list[int]]:
    """The answers of these requests, all at once, one step ahead of what is read."""
    scheduler, runner = Scheduler(LIMITS, parts=[part]), FakeRunner(LIMITS)
    made: dict[int, list[int]] = {}
    for id, request in enumerate(requests, 1):
        made[id] = []
        scheduler.add(new_sequence(id, request, LIMITS))
    in_flight = None
    while len(scheduler.live) or in_flight:
        step = scheduler.schedule()
        launched = (step, runner.launch(step)) if step else None
        if in_flight:
            for update in scheduler.commit(in_flight[0], in_flight[1].result()[0]):
                assert update.result.token is not None
                made[update.sequence].append(update.result.token)
        in_flight = launched
    return list(made.values())


def test_the_part_of_the_page_ends_reasoning_at_its_budget_and_leaves_others_alone() -> None:
    names = _names_of_the_page()
    budget = names["ThinkingBudget"](most=4, end=_END)
    plain = EngineRequest(
        prompt=(1, 2, 3), sampling=GREEDY, max_tokens=9, stop_ids=frozenset(), settings=()
    )
    bounded = EngineRequest(
        prompt=(1, 2, 3), sampling=GREEDY, max_tokens=9, stop_ids=frozenset(), settings=(budget,)
    )
    tokens = [1, 2, 3]
    for place in range(9):
        tokens.append(_END if place == 4 else next_token(tokens))
    alone, both = (
        _answers([plain], names["Thinking"]()),
        _answers([bounded, plain], names["Thinking"]()),
    )
    assert both == [tokens[3:], alone[0]]
    assert tokens[3:7] == alone[0][:4]


def test_the_page_lists_every_hook_and_names_parts_that_exist() -> None:
    table = PAGE[PAGE.index("| Hook") :]
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    missing = [name for name in vars(SequenceHooks) if not name.startswith("_")]
    assert [name for name in missing if name not in listed] == []
    used = set(re.findall(r"`([A-Z]\w+)`", table)) - {
        "InvalidRequest",
        "SequenceHooks",
        "EnginePart",
    }
    assert used <= {part.__name__ for part in PARTS} | {"Drafting"}


def test_the_core_names_no_part() -> None:
    core = ["scheduler", "sequence", "live_sequences", "steps/builder", "steps/commits"]
    core += ["decodes", "steps/series"]
    for file in core:
        text = (ENGINE / f"{file}.py").read_text()
        named = [noun for noun in _NOUNS if re.search(rf"\b_?{noun}", text, re.IGNORECASE)]
        assert named == [], file
        assert re.findall(r"engine\.(?:beams|drafting|parts|draft_model)\b", text) == [], file
