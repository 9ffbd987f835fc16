"""An MCP server as a program: it greets, after it asked whether the client is there."""

from __future__ import annotations

import json
import sys
from typing import Any


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "tools/list":
        return {"tools": [{"name": "greet", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        if params["arguments"].get("name") == "nobody":
            sys.exit(1)
        return {"content": [{"type": "text", "text": f"Hello {params['arguments']['name']}"}]}
    return {"protocolVersion": "2025-06-18"}


answers: list[Any] = []
for line in sys.stdin:
    asked = json.loads(line)
    if "method" not in asked:
        answers.append(asked.get("result", asked.get("error", {}).get("code")))
        continue
    if "id" not in asked:
        continue
    say(id=-1, result={"late": "of a call that nobody waits for"})
    if asked["method"] == "tools/list":
        say(method="notifications/message", params={})
        say(method="ping", id=asked["id"])  # the same number, of the server's own requests
        say(method="roots/list", id=7)
    if asked["method"] == "tools/call" and asked["params"]["name"] == "answers":
        said = {"content": [{"type": "text", "text": json.dumps(answers)}]}
        say(id=asked["id"], result=said)
        continue
    say(id=asked["id"], result=result_of(asked["method"], asked["params"]))
