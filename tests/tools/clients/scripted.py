"""A gateway whose model plays the part of a coding agent's: 20 commands, then a last word.

    python -m tests.tools.clients.scripted --port 8891

So a small model's wit is not tested, only that agents and gateway understand each other. Each turn
calls the agent's own shell tool, in the form of Hermes and in pieces; the command writes the turn's
number into turns.txt and prints it. A result without that number ends the conversation with the
word LOST. A token is a character of the prompt, and those that it shares with the request before
it came from the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Callable
from typing import Any

import msgspec
import uvicorn

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.chat import AnswerFormat, Message, Tool
from sax.types import GenerateRequest, TokenChunk
from tests.http_gateway.fake_cell import FakeCell, published

MODEL = "/sax/test/agent"
TURNS = 20
DONE = "All turns are done."
LOST = "LOST"
_PIECE = 7  # characters of a chunk
# Name of an agent's shell -> the argument that holds the command
SHELLS = {
    "Bash": "command",
    "bash": "command",
    "run_shell_command": "command",
    "exec_command": "cmd",
}
_OTHERS = {"boolean": False, "string": "A turn", "integer": 1000, "number": 1000}


class ScriptedCell(FakeCell):
    def __init__(self) -> None:
        super().__init__(published(MODEL))
        self._last = ""  # the prompt before

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        prompt = _flat(request)
        cached = len(os.path.commonprefix([prompt, self._last]))
        if request.chat.tools:  # others are questions beside the conversation
            self._last = prompt
        text = answer_to(request)
        pieces = [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]
        for n, piece in enumerate(pieces):
            await asyncio.sleep(0)
            first: dict[str, Any] = {
                "answer_format": AnswerFormat("hermes"),
                "prompt_tokens": len(prompt),
                "cached_tokens": cached,
            }
            sink(TokenChunk(piece, (n,), completion_tokens=n + 1, **({} if n else first)))
        sink(TokenChunk("", (), finish_reason="stop", completion_tokens=len(pieces)))


def answer_to(request: GenerateRequest) -> str:
    """Return the agent's next turn: a call of its shell, or its last word."""
    messages = [each for each in request.prompt if isinstance(each, Message)]
    results = [each for each in messages if each.role == "tool"]
    shells = [tool for tool in request.chat.tools if tool.name in SHELLS]
    if not shells:
        return "A conversation"  # such as its title
    turn = len(results)
    if turn and _mark(turn - 1) not in " ".join(results[-1].texts):
        return f"{LOST}: turn {turn} got {results[-1].texts}"
    if turn == TURNS:
        return DONE
    command = f"echo {_mark(turn)} >> turns.txt; tail -n 1 turns.txt"
    arguments = {**_required(shells[0]), SHELLS[shells[0].name]: command}
    call = json.dumps({"name": shells[0].name, "arguments": arguments})
    return f"Turn {turn}.\n<tool_call>\n{call}\n</tool_call>"


def _required(shell: Tool) -> dict[str, Any]:
    """Return a value for each argument that a shell's schema demands."""
    schema = json.loads(shell.parameters)
    properties = schema.get("properties", {})
    return {name: _OTHERS.get(properties[name].get("type")) for name in schema.get("required", [])}


def _mark(turn: int) -> str:
    return f"turn-{turn:03}"


def _flat(request: GenerateRequest) -> str:
    """Return tools and messages in the order in which templates write them."""
    parts = (*request.chat.tools, *request.prompt)
    return "\n".join(msgspec.json.encode(part).decode() for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    app = create_app(ScriptedCell(), GatewayConfig(port=port))
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
