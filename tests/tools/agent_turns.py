"""How many of a 20-turn agent's prompt tokens come from the prefix cache of a real cell.

    python -m tests.tools.agent_turns

Starts a cell with the demo model, whose template has no tools, and lets it call a shell in sax's
own form, as a coding agent would: each turn sends the whole conversation again, with the last call
as it came and a result of that call. Prints the tokens of every turn and a table: also the most
that any cache could have given, which is the prompt and the answer of the turn before, but for the
last token, whose keys and values nothing computed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.demo_model import demo_model
from tests.end_to_end.cell import SMOLLM2, Cell, local_plan

CONTEXT = 8192
_COMPILES = "sax_compiles_while_serving"
_SHELL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Runs a command of a shell and returns what it prints. " * 4,
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "maxLength": 60}},
            "required": ["command"],
            "additionalProperties": False,
        },
    },
}
_WORDS = ("main", "test", "file", "line", "error", "value", "return", "import", "module", "class")


class Turn(NamedTuple):
    """Tokens of one request."""

    prompt: int
    cached: int
    answer: int


def turns(cell: Cell, number: int, seed: int, instructions: int) -> list[Turn]:
    """Run one agent. instructions: words of its system message."""
    chance = random.Random(seed)
    rules = "You are a coding agent. " + _text(random.Random(0), instructions)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": rules},
        {"role": "user", "content": "Mend the failing test of the module, and run it again."},
    ]
    made: list[Turn] = []
    for _ in range(number):
        body = {"messages": messages, "tools": [_SHELL], "tool_choice": "required"}
        settings = {"model": SMOLLM2, "max_tokens": 200, "temperature": 0.7, "seed": seed}
        reply = cell.http.post("/v1/chat/completions", json={**body, **settings}, timeout=300)
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-sax-tools"] == "generic"
        said, usage = reply.json()["choices"][0]["message"], reply.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        made.append(Turn(usage["prompt_tokens"], cached, usage["completion_tokens"]))
        messages += [
            said,
            *(
                {"role": "tool", "tool_call_id": call["id"], "content": _text(chance, 30)}
                for call in said["tool_calls"]
            ),
        ]
    return made


def most_cached(made: list[Turn]) -> list[int]:
    """Return for each turn how many tokens of its prompt the turn before has computed, at most."""
    return [0, *(turn.prompt + turn.answer - 1 for turn in made[:-1])]


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS, k=words))


def table(agents: list[list[Turn]]) -> str:
    """Return the shares of each agent as Markdown."""
    rows = ["| agent | turns | prompt tokens | from the cache | at most | behind its first turn | "
            "at most |"]  # fmt: skip
    rows.append("| --- | --- | --- | --- | --- | --- | --- |")
    for number, made in enumerate(agents, 1):
        prompt, rest = sum(turn.prompt for turn in made), sum(turn.prompt for turn in made[1:])
        cached, later = sum(turn.cached for turn in made), sum(turn.cached for turn in made[1:])
        most, first = sum(most_cached(made)), made[0].cached
        shares = f"{cached / prompt:.1%} | {(first + most) / prompt:.1%} | "
        shares += f"{later / rest:.1%} | {most / rest:.1%}"
        rows.append(f"| {number} | {len(made)} | {prompt:,} | {shares} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--instructions", type=int, default=1500, help="words of a system message")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Cell(local_plan(Path(folder), "--slots=8", f"--max_context={CONTEXT}")) as cell,
    ):
        cell.publish(str(demo_model()))
        agents = [turns(cell, given.turns, seed, given.instructions) for seed in (1, 2)]
        told = [f"{turn.prompt:6} {turn.cached:6} {turn.answer:4}" for turn in agents[0]]
        compiles = (row for row in cell.metrics_page().splitlines() if row.startswith(_COMPILES))
        sys.stdout.write("\n".join((*told, table(agents), *compiles)) + "\n")


if __name__ == "__main__":
    main()
