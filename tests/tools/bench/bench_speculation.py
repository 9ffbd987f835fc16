"""Tokens per second with draft tokens and without, on answers that repeat and on free ones."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from model_server.checkpoints.opening import open_checkpoint
from model_server.config import ModelServerConfig
from model_server.engine.engine import Engine, SequenceUpdate
from model_server.engine.running.ops import Runner
from model_server.engine.types import Grammar, Sampling
from model_server.grammars.constraint import Constraint
from sax.types import Message
from tests.demo_model import demo_model
from tests.tools.bench.demo import COMPILED, GREEDY, load_demo, request
from tests.tools.bench.stubbed_head import Stubbed, write_draft_layer, write_head
from tests.tools.bench.table import Table

CONTEXT, SLOTS, ANSWER = 1024, 32, 128
ROUNDS = 5
_WARM = Sampling(temperature=0.8, top_k=0, top_p=0.95, seed=7)
_PENALISED = replace(GREEDY, presence_penalty=0.1)
_TEXT = (
    "The harbour of Lindau lies on the northern shore. Its lighthouse, built in 1856, is 33 metres "
    "high and still shows its light when ships ask for it by radio. A lion of Kelheim limestone, "
    "six metres tall, looks out over the water from the eastern pier."
)
COPY = f"Repeat this text word for word:\n\n{_TEXT}"
FREE = "Write a story about a lighthouse keeper and her dog."
_NOTES = {
    "type": "object",
    "properties": {
        "buildings": {
            "type": "array",
            "minItems": 8,
            "maxItems": 8,
            "items": {
                "type": "object",
                "properties": {
                    "name_of_the_building": {"type": "string", "maxLength": 24},
                    "height_in_metres": {"type": "integer", "minimum": 1, "maximum": 99},
                },
                "required": ["name_of_the_building", "height_in_metres"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["buildings"],
    "additionalProperties": False,
}
NOTES = f"List the buildings of this text as JSON:\n\n{_TEXT}"


class Case(NamedTuple):
    """Answers of one kind, so many at a time."""

    name: str
    text: str
    sampling: Sampling
    batch: int
    schema: Mapping[str, Any] | None = None  # JSON Schema that the answer keeps to
    answer: int = ANSWER  # tokens, at most


CASES = (
    Case("repeat a text, greedy", COPY, GREEDY, 1),
    Case("a story, greedy", FREE, GREEDY, 1),
    Case("a story, temperature 0.8", FREE, _WARM, 1),
    Case("JSON under a schema, greedy", NOTES, GREEDY, 1, _NOTES, 4 * ANSWER),
    Case("repeat a text, presence penalty 0.1", COPY, _PENALISED, 1),
    Case("repeat a text, greedy", COPY, GREEDY, 8),
    Case("a story, temperature 0.8", FREE, _WARM, 8),
    Case("JSON under a schema, greedy", NOTES, GREEDY, 8, _NOTES, 4 * ANSWER),
    Case("repeat a text, greedy", COPY, GREEDY, 32),
    Case("a story, temperature 0.8", FREE, _WARM, 32),
)
# The model as its own draft model: always right, and as slow as the model, so it should not pay.
DRAFT_CASES = (
    Case("a story, greedy, itself as draft model", FREE, GREEDY, 1),
    Case("a story, greedy, itself as draft model", FREE, GREEDY, 8),
)


class Decoding:
    """An engine, and how many tokens a second it makes."""

    def __init__(
        self, mode: str | None, wrapped: Callable[[Runner], Runner] | None = None, **more: str
    ) -> None:
        config = ModelServerConfig(max_context=CONTEXT, slots=SLOTS, jax_cache_dir=COMPILED)
        self._loaded = load_demo(config, SPECULATION=mode, **more)
        self._ended = threading.Semaphore(0)
        self._begun: set[int] = set()
        self._batch = self._tokens = 0
        self._since_s = 0.0
        self.answer: list[int] = []  # of the first sequence of the last batch
        self.runner = wrapped(self._loaded.runner) if wrapped else self._loaded.runner
        self.engine = Engine(self.runner, self._keep, self._loaded.step_times)

    def encoded(self, text: str) -> tuple[int, ...]:
        template = self._loaded.chat_template
        assert template is not None
        rendered = template.render([Message("user", text)])
        return tuple(self._loaded.tokenizer.encode_chat(rendered))

    def tokens_per_second(self, case: Case) -> float:
        """Run a batch of one prompt; measures from the moment when all prompts are computed."""
        self._batch, self._begun, self.answer = case.batch, set(), []
        prompt, grammar = self.encoded(case.text), self._grammar(case)
        for row in range(case.batch):
            sampling = replace(case.sampling, seed=row, guided=grammar is not None)
            self.engine.submit(request(prompt, case.answer, sampling, grammar=grammar))
        for _ in range(case.batch):
            self._ended.acquire()
        return self._tokens / (time.perf_counter() - self._since_s)

    def _grammar(self, case: Case) -> Grammar | None:
        if case.schema is None:
            return None
        assert self._loaded.grammars is not None
        constraint = Constraint("json_schema", json.dumps(case.schema))
        return asyncio.run(self._loaded.grammars.compile(constraint))

    def accepted(self) -> tuple[int, int]:
        stats = self.engine.stats()
        return stats.draft_tokens_accepted, stats.draft_tokens

    def _keep(self, updates: list[SequenceUpdate]) -> None:
        if len(self._begun) < self._batch:
            self._begun |= {update.sequence for update in updates}
            self._tokens, self._since_s = 0, time.perf_counter()
        else:
            self._tokens += len(updates)
        first = min(self._begun)
        self.answer += [each.result.token or 0 for each in updates if each.sequence == first]
        for update in updates:
            if update.finish or update.error:
                self._ended.release()


class WithStub(Decoding):
    """Decoding with a head whose tokens a stub replaces; it learns each answer."""

    def __init__(self, mode: str, **more: str) -> None:
        super().__init__(mode, Stubbed, **more)

    def learn(self, text: Sequence[int]) -> None:
        assert isinstance(self.runner, Stubbed)
        self.runner.learn(text)

    def tokens_per_second(self, case: Case) -> float:
        measured = super().tokens_per_second(case)
        self.learn([*self.encoded(case.text), *self.answer])
        return measured


def run() -> Table:
    table = Table(
        "Draft tokens",
        f"SmolLM2-135M-Instruct (bf16 weights), {SLOTS} slots, answers of {ANSWER} tokens, under a "
        f"schema until they are complete; median of {ROUNDS} rounds, in turns. Off: `SPECULATION` "
        "off. On: the default, null; with a draft model or a head, that. A stub replaces a head's "
        "draft tokens by those of the answer, seven of ten of them; behind a wrong one none "
        "counts, so of three in a row half are accepted, of seven a third. Tokens per second once "
        "all prompts are computed. Accepted: of the draft tokens that were tried.",
        ("answer", "batch", "off tokens/s", "on tokens/s", "on / off", "accepted"),
    )
    off, on = Decoding("off"), Decoding(None)
    _measure(table, CASES, off, on)
    on.engine.close()
    draft = Decoding("draft", DRAFT_MODEL=str(demo_model()))
    _measure(table, DRAFT_CASES, off, draft)
    draft.engine.close()
    with tempfile.TemporaryDirectory(prefix="sax-bench-") as folder:
        with closing(open_checkpoint(str(demo_model()))) as checkpoint:
            head = write_head(Path(folder) / "head", checkpoint.config)
        eagle = WithStub("draft", DRAFT_MODEL=str(head))
        _measure_stub(table, "an EAGLE-3 head", off, eagle)
        drafting = write_draft_layer(Path(folder) / "drafting")
        layer = WithStub("mtp", path="auto", checkpoint=str(drafting))
        _measure_stub(table, "a draft layer", off, layer)
    off.engine.close()
    return table


def _measure_stub(table: Table, head: str, off: Decoding, on: WithStub) -> None:
    name = f"a story, greedy, {head} that a stub makes right"
    cases = [Case(name, FREE, GREEDY, batch) for batch in (1, 8)]
    off.tokens_per_second(cases[0])
    on.learn([*off.encoded(FREE), *off.answer])
    _measure(table, cases, off, on)
    on.engine.close()


def _measure(table: Table, cases: Sequence[Case], off: Decoding, on: Decoding) -> None:
    """Add a row for each case, measured on both sides in turns."""
    for case in cases:
        for side in (off, on):  # once to warm up
            side.tokens_per_second(case)
        before = on.accepted()
        rounds = [[side.tokens_per_second(case) for side in (off, on)] for _ in range(ROUNDS)]
        right, tried = (now - then for now, then in zip(on.accepted(), before, strict=True))
        plain, drafted = (statistics.median(each) for each in zip(*rounds, strict=True))
        ratio = statistics.median(second / first for first, second in rounds)
        share = f"{right / tried:.0%} of {tried}" if tried else "none tried"
        table.add(case.name, case.batch, f"{plain:.0f}", f"{drafted:.0f}", f"{ratio:.2f}", share)
