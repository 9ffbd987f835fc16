"""Kills replicas of the demo model under eight streams; compares each text with its whole reply.

    python -m tests.tools.chaos.real_streams --kills 200                  in float32
    python -m tests.tools.chaos.real_streams --kills 200 --dtype bfloat16

Two streams each are greedy, seeded, under a schema, and forced calls of tools. A replica dies once
all eight have begun, so that none of them may be refused. Of three replicas one may still be
starting, from the kill before. In bfloat16 a step of another size rounds otherwise, so that texts
may part there; how many did is printed, and is no fault.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx

from tests.demo_model import demo_model
from tests.end_to_end.cell import MODEL_SERVER, SMOLLM2, Cell, local_plan

SERVERS = tuple(f"{MODEL_SERVER} {number}" for number in range(3))
TOKENS = 96
_STARTED = 3  # pieces that each stream has before a replica dies
# ChatML with tools, which the demo model's own template has no place for.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }} <tool_call><|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.tool_calls }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_LIST = {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 12}
_OBJECT = {"type": "object", "properties": {"names": _LIST}, "required": ["names"]}
_TOOL = {"type": "function", "function": {"name": "note", "parameters": _OBJECT}}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seeded": {"temperature": 1},
    "schema": {
        "temperature": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": _OBJECT}},
    },
    "tools": {"temperature": 1, "tools": [_TOOL], "tool_choice": "required"},
}


def bodies(story: int) -> list[tuple[str, dict[str, Any]]]:
    """The eight requests of one story, by kind."""
    made: list[tuple[str, dict[str, Any]]] = []
    for number, (kind, fields) in enumerate([*KINDS.items()] * 2):
        text = f"Tell me story {story} about lighthouse {number}."
        messages = [{"role": "user", "content": text}]
        body = {
            "model": SMOLLM2,
            "messages": messages,
            "max_tokens": TOKENS,
            "seed": story * 8 + number,
        }
        made.append((kind, body | fields))
    return made


async def pieces(http: httpx.AsyncClient, body: dict[str, Any]) -> AsyncIterator[str]:
    """The text of a streamed chat, arguments of calls included. Raises ValueError for an error."""
    async with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as reply:
        if reply.status_code != 200:
            raise ValueError((await reply.aread()).decode())
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise ValueError(event["error"]["message"])
            for choice in event["choices"]:
                yield _text(choice["delta"])


def _text(part: dict[str, Any]) -> str:
    calls = part.get("tool_calls") or ()
    written = "".join(
        f"{call['function'].get('name') or ''}{call['function']['arguments']}" for call in calls
    )
    return (part.get("content") or "") + written


async def whole(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    for _ in range(30):
        reply = await http.post("/v1/chat/completions", json=body)
        if reply.status_code != 503:
            break
        print(f"before any answer: {reply.text[:300]}", file=sys.stderr, flush=True)
        await asyncio.sleep(1.0)
    if reply.is_error:
        print(f"{reply.status_code}: {reply.text[:300]}", file=sys.stderr, flush=True)
    reply.raise_for_status()
    return _text(reply.json()["choices"][0]["message"])


async def story(cell: Cell, number: int, victim: str, counts: Counter[str]) -> list[str]:
    """Stream, kill, compare; return what was wrong."""
    asked, begun = bodies(number), asyncio.Queue[int]()

    async def read(place: int, body: dict[str, Any]) -> str:
        text, had = "", 0
        try:
            async with aclosing(pieces(http, body)) as every:
                async for piece in every:
                    text, had = text + piece, had + 1
                    if had == _STARTED:
                        begun.put_nowait(place)
        finally:
            if had < _STARTED:  # it was refused, or is over already
                begun.put_nowait(place)
        return text

    async with httpx.AsyncClient(base_url=cell.url, timeout=120, headers=cell.headers) as http:
        streams = [asyncio.create_task(read(n, body)) for n, (_, body) in enumerate(asked)]
        for _ in streams:
            await begun.get()
        counts["met"] += sum(not each.done() for each in streams)
        await asyncio.to_thread(cell.kill, victim)
        texts = await asyncio.gather(*streams, return_exceptions=True)
        await asyncio.to_thread(cell.start, victim)
        wholes = await asyncio.gather(*[whole(http, body) for _, body in asked])
        wrong: list[str] = []
        for (kind, _), text, expected in zip(asked, texts, wholes, strict=True):
            if isinstance(text, BaseException):
                wrong.append(f"{kind}: {type(text).__name__}: {text}")
                counts[f"{kind} broken"] += 1
            elif text != expected:
                wrong.append(f"{kind}: {text!r} instead of {expected!r}")
                counts[f"{kind} parted"] += 1
            else:
                counts[f"{kind} equal"] += 1
    return wrong


def play(stories: range, dtype: str, folder: Path) -> tuple[Counter[str], list[str]]:
    counts, wrong = Counter[str](), list[str]()
    flags = ("--slots=8", "--max_context=1024", "--drain_seconds=1")
    with Cell(local_plan(folder, *flags, servers=len(SERVERS))) as cell:
        overrides = {
            "DTYPE": dtype,
            "KV_CACHE_DTYPE": dtype,
            "MAX_CONTEXT": 1024,
            "CHAT_TEMPLATE": TEMPLATE,
            "TOOL_PARSER": "hermes",
        }
        cell.publish(str(demo_model()), replicas=len(SERVERS), overrides=overrides)
        cell.eventually(lambda: cell.ready_replicas() == len(SERVERS), "all replicas are ready")
        for number in stories:
            cell.eventually(lambda: cell.ready_replicas() >= 2, "two replicas are ready")
            wrong += asyncio.run(story(cell, number, SERVERS[number % len(SERVERS)], counts))
            counts["kills"] += 1
            if number % 10 == 9:
                print(f"{time.strftime('%H:%M:%S')} {dict(counts)}", file=sys.stderr, flush=True)
    return counts, wrong


def main() -> int:
    """Exit 1 if a stream broke, or in float32 said something else than its whole reply."""
    parser = argparse.ArgumentParser(
        "python -m tests.tools.chaos.real_streams",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=200, help="(%(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first story (0)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sax-chaos-") as folder:
        stories = range(chosen.first, chosen.first + chosen.kills)
        counts, wrong = play(stories, chosen.dtype, Path(folder))
    print(json.dumps(dict(sorted(counts.items()))))
    for each in wrong[:20]:
        print(each, file=sys.stderr)
    broken = any(name.endswith("broken") for name in counts)
    return 1 if broken or (wrong and chosen.dtype == "float32") else 0


if __name__ == "__main__":
    sys.exit(main())
