"""Constraints that end, freeze or fill whoever compiles them, and a fuzz of all kinds of them."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.end_to_end.cell import SMOLLM2, Cell
from tests.tools.stress.row import row

SECONDS = 30.0  # until each has its answer: it waits for 5 at most, and is compiled for 20 at most
FUZZ_S = float(os.environ.get("SAX_FUZZ_SECONDS", "60"))


def _chain(rules: int) -> str:
    links = [f"a{n}: a{n + 1}" for n in range(rules)]
    return "\n".join(["start: a0", *links, f'a{rules}: "x"', ""])


def _items(depth: int) -> str:
    links = {f"c{n}": {"items": {"$ref": f"#/c{n + 1}"}} for n in range(depth)}
    return json.dumps({**links, f"c{depth}": {"type": "string"}, "$ref": "#/c0"})


def _spellings(chain: int, names: int, width: int) -> str:
    links = {f"c{n}": {"$ref": f"#/c{n + 1}"} for n in range(chain)}
    shared = {"anyOf": [{"$ref": "#/c0"}] * width}
    named = [{"$ref": f"#{n}/B"} for n in range(names)]
    whole = {"B": shared, **links, f"c{chain}": {"type": "string"}, "allOf": named}
    return json.dumps(whole, separators=(",", ":"))


KILLERS = {
    "a chain of rules": {"guided_grammar": _chain(3000)},
    "a chain of references": {"guided_json": _items(1200)},
    "new lines": {"guided_grammar": "\n" * 65_536},
    "other new lines": {"guided_grammar": "\n" * 65_535},
    **{
        f"names of one part, {n}": {"guided_json": _spellings(250, 500, 1000 + n)} for n in range(4)
    },
    "nested": {
        "structured_outputs": {"json": "[" * 20_000 + "]" * 20_000, "disable_any_whitespace": True}
    },
    "repeats": {"guided_regex": "((a{1,99}){1,99}){1,99}"},
}


def _ask(cell: Cell, fields: dict[str, object]) -> tuple[httpx.Response, float]:
    body = {"model": SMOLLM2, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    began_s = time.monotonic()
    reply = httpx.post(
        f"{cell.url}/v1/chat/completions", json=body | fields, timeout=120, headers=cell.headers
    )
    return reply, time.monotonic() - began_s


@row("grammars and schemas that end or freeze their compiler, all at once", servers=2)
def deadly_grammars(cell: Cell) -> str:
    with ThreadPoolExecutor(len(KILLERS)) as pool:
        asked = [pool.submit(_ask, cell, fields) for fields in KILLERS.values()]
        time.sleep(1.0)
        good, waited_s = _ask(cell, {"guided_regex": "[a-z]{1,9}"})
        replies = [each.result() for each in asked]
    assert good.status_code == 200, good.text[:300]
    for name, (reply, _) in zip(KILLERS, replies, strict=True):
        assert reply.status_code in (200, 400, 503), f"{name}: {reply.text[:200]}"
    longest_s = max(took_s for _, took_s in replies)
    assert longest_s < SECONDS, f"one was answered after {longest_s:.1f} s"
    told = Counter(reply.status_code for reply, _ in replies)
    return (
        f"{told[400]} are 400, {told[503]} 503, {told[200]} can be compiled, within "
        f"{longest_s:.1f} s; a constraint of another user in {waited_s:.2f} s"
    )


# A model keeps its last 128 compiled constraints, which fill in the course of an hour.
@row(
    f"random grammars, schemas and templates' variables for {FUZZ_S:.0f} s",
    most_kept=128 << 20,
)
def fuzzed_grammars(cell: Cell) -> str:
    rng, told, end_s = random.Random(40), Counter[int](), time.monotonic() + FUZZ_S
    with ThreadPoolExecutor(3) as pool:
        while time.monotonic() < end_s:
            drawn = [_drawn(rng) for _ in range(3)]
            for fields, (reply, took_s) in zip(
                drawn, pool.map(lambda each: _ask(cell, each), drawn), strict=True
            ):
                what = f"{json.dumps(fields)[:300]}: {reply.status_code} {reply.text[:200]}"
                assert reply.status_code in (200, 400, 429, 503), what
                assert took_s < SECONDS, f"{took_s:.0f} s: {what}"
                told[reply.status_code] += 1
                if took_s > 2:
                    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {took_s:.1f} s: {what}\n")
    return f"{told.total()} requests: " + ", ".join(f"{n} {code}" for code, n in told.most_common())


def _drawn(rng: random.Random) -> dict[str, object]:
    make = rng.choice([_lark, _gbnf, _schema, _regex, _tag, _broken, _variables])
    return make(rng)


def _lark(rng: random.Random) -> dict[str, object]:
    """Rules that refer to each other as they like, also to themselves."""
    count = rng.choice([3, 30, 300, 3000])
    names = [f"r{n}" for n in range(count)]
    pieces = ['"a"', '"b" "c"', "/[a-z]{1,9}/", "/(x|y)+/", '("q" | "z")?', "A", '"\\n"*']

    def part() -> str:
        one = rng.choice([*pieces, rng.choice(names), rng.choice(names)])
        return one + rng.choice(["", "", "", "?", "*", "+", "{2,4}"])

    def body() -> str:
        return " | ".join(
            " ".join(part() for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 3))
        )

    rules = "\n".join(f"{name}: {body()}" for name in names)
    return {"guided_grammar": f"start: r0\n{rules}\nA: /[0-9]+/\n"[:64_000]}


def _gbnf(rng: random.Random) -> dict[str, object]:
    depth = rng.choice([2, 20, 200, 2000])
    rules = [f'r{n} ::= ("a" r{n + 1} | [b-d]+)' for n in range(depth)]
    return {"guided_grammar": "\n".join(["root ::= r0", *rules, f'r{depth} ::= "x"'])[:64_000]}


def _schema(rng: random.Random, depth: int = 0) -> dict[str, object]:
    return {"guided_json": json.dumps(_any(rng, rng.choice([1, 3, 5]), rng.choice([1, 4, 40])))}


def _any(rng: random.Random, depth: int, width: int) -> object:
    kinds = ["string", "integer", "number", "ref", "enum", "pattern", "array", "object", "all"]
    match rng.choice(kinds if depth else kinds[:6]):
        case "ref":
            return {"$ref": rng.choice(["#", "#/properties/a", "#/$defs/x", "#0/a", "#anchor"])}
        case "enum":
            return {"enum": [rng.choice(["a", "\x01", "\u00e9" * 99, 1e300, None])] * width}
        case "pattern":
            pattern = rng.choice(["^(a|b)*$", "(x{1,99}){1,99}", "[^a]+", "(?=a)b", "\\p{L}{3}"])
            return {"type": "string", "pattern": pattern, "maxLength": rng.choice([0, 9, 10**6])}
        case "array":
            items = _any(rng, depth - 1, width)
            return {"type": "array", "items": items, "minItems": rng.choice([0, 2, 10**6])}
        case "object":
            names = [f"p{n}" for n in range(rng.randint(0, width))]
            parts = {name: _any(rng, depth - 1, width // 2 or 1) for name in names}
            more = {
                "required": names[: rng.randint(0, len(names))],
                "minProperties": rng.choice([0, 1]),
            }
            return {"type": "object", "properties": parts, **more}
        case "all":
            word = rng.choice(["allOf", "anyOf", "oneOf"])
            return {word: [_any(rng, depth - 1, width // 2 or 1) for _ in range(min(width, 6))]}
        case kind:
            low = rng.choice([-(10**30), -5, 0, 0.5])
            return {"type": kind, "minimum": low, "exclusiveMaximum": rng.choice([0, 0.75, 1e300])}


def _regex(rng: random.Random) -> dict[str, object]:
    pattern = "".join(
        rng.choice(
            ["a", "(", ")", "|", "*", "+", "?", "{1,50}", "[a-z]", "\\w", ".", "^", "$", "\\"]
        )
        for _ in range(rng.choice([3, 9, 40]))
    )
    return {"guided_regex": pattern}


def _tag(rng: random.Random) -> dict[str, object]:
    schema = _any(rng, 2, 4)
    tag = {"begin": "<f>", "schema": schema, "end": rng.choice(["</f>", "", "<|im_end|>"])}
    return {"response_format": {"type": "structural_tag", "structures": [tag], "triggers": ["<"]}}


def _variables(rng: random.Random) -> dict[str, object]:
    """What a chat template gets: variables, and tools with any parameters."""
    name = rng.choice(["enable_thinking", "x", "messages", "tools", "\u2028", "n" * 9999])
    function = {"name": "f", "parameters": _any(rng, 3, 4)}
    return {
        "chat_template_kwargs": {name: _any(rng, 3, 4)},
        "tools": [{"type": "function", "function": function}],
        "tool_choice": rng.choice(["auto", "required", "none"]),
    }


def _broken(rng: random.Random) -> dict[str, object]:
    """Something right with some of its characters changed."""
    fields = rng.choice([_lark, _gbnf, _schema, _regex])(rng)
    (name, value), *_ = fields.items()
    letters = list(str(value))
    for _ in range(rng.randint(1, 5)):
        letters[rng.randrange(len(letters))] = rng.choice("{}[]()\"'\\|*:\n\x00\u2028a0")
    return {name: "".join(letters)}
