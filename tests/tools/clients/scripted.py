"""A gateway whose model plays the part of a coding agent's: 20 commands, then a last word.

    python -m tests.tools.clients.scripted --port 8891

So a small model's wit is not tested, only that agents and gateway understand each other. Each turn
calls the agent's own shell tool, in the form of Hermes and in pieces; the command writes the turn's
number into turns.txt and prints it. A result without that number ends the conversation with the
word LOST. An agent without tools that edits files by what it reads gets the whole file. A token is
a character of the prompt, and those that it shares with the request before it came from the cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
from collections.abc import Callable
from typing import Any

import msgspec
import uvicorn

from http_gateway.app import create_app
from http_gateway.config import GatewayConfig
from sax.chat import AnswerFormat, Message, Tool
from sax.storage.object_store import open_store
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
_LAST_WORD = "final_answer"  # a tool that takes the last word, where an agent has one
_EDIT = re.compile(r"Write turn-(\d{3}) into turns\.txt")
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
    results = [each for each in messages if _is_result(each)]
    shells = [tool for tool in request.chat.tools if tool.name in SHELLS]
    if not shells:
        return _edit(messages) or "A conversation"  # such as its title
    turn = len(results)
    if turn and _mark(turn - 1) not in " ".join(results[-1].texts):
        return f"{LOST}: turn {turn} got {results[-1].texts}"
    if turn == TURNS:
        ends = any(tool.name == _LAST_WORD for tool in request.chat.tools)
        return _call(_LAST_WORD, {"answer": DONE}) if ends else DONE
    command = f"echo {_mark(turn)} >> turns.txt; tail -n 1 turns.txt"
    arguments = {**_required(shells[0]), SHELLS[shells[0].name]: command}
    return f"Turn {turn}.\n{_call(shells[0].name, arguments)}"


def _is_result(message: Message) -> bool:
    # smolagents tells results as a user would.
    said = " ".join(message.texts)
    return message.role == "tool" or (message.role == "user" and said.startswith("Observation:"))


def _call(name: str, arguments: dict[str, Any]) -> str:
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def _edit(messages: list[Message]) -> str:
    """Return turns.txt with the line that was asked for last; "": none was."""
    asked = [found for each in messages for text in each.texts for found in _EDIT.findall(text)]
    if not asked:
        return ""
    turn = int(asked[-1])
    seen = " ".join(text for each in messages for text in each.texts)
    if turn and f"{_mark(turn - 1)}\n" not in seen:
        return f"{LOST}: the file has no {_mark(turn - 1)}"
    lines = "".join(f"{_mark(n)}\n" for n in range(turn + 1))
    return f"turns.txt\n```\n{lines}```\n"


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
    store = open_store("memory://")  # of responses, whose items clients send by their ids
    app = create_app(ScriptedCell(), GatewayConfig(port=port), store=store)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
