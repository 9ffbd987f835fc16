"""Random stories of a scheduler, with every mix of what requests may ask for.

    python -m tests.model_server.engine.stories            write golden/stories.digests anew
    python -m tests.model_server.engine.stories 17         print what happens in story 17

The device is arithmetic on ids and positions, so nothing here depends on pages being right: these
stories only hold what is decided, step by step, while the code that decides it is rewritten.
`golden/stories.digests` has a digest for each seed, of all steps, masks, updates and counters.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from model_server.engine.drafting.drafting import Drafting
from model_server.engine.drafting.drafts import Drafts
from model_server.engine.limits import EngineLimits, WindowLimits, check_limits
from model_server.engine.media import MediaLimits, MediaSpan
from model_server.engine.parts.beams import sampling_of
from model_server.engine.registry import finish_of, new_sequence
from model_server.engine.request import EngineRequest, SequenceUpdate
from model_server.engine.running.ops import Encode, Later, Op, Pending, Proposals, Propose
from model_server.engine.scheduler import Scheduler
from model_server.engine.types import (
    BeamSettings,
    Row,
    RowResult,
    Sampling,
    SlotMask,
    Step,
    StepResult,
)
from sax.errors import SaxError
from tests.model_server.engine.fake_drafts import FakeDrafts, masks_of_rows
from tests.model_server.engine.media.fake_images import ENCODER

GOLDEN = Path(__file__).parent / "golden" / "stories.digests"
STORIES = 2400
VOCAB = 64
_TURNS = 4000  # in which every story ends


def digest(seed: int) -> str:
    """Return what tells two tellings of a story apart."""
    told = blake2b(digest_size=8)
    for event in story(seed):
        told.update(event.encode() + b"\n")
    return told.hexdigest()


def answers(seed: int, *, drafts: bool) -> dict[int, tuple[list[int], str]]:
    """Return the tokens of each sequence of a story, and how it ended, with draft tokens or not.

    A story without any is told without a difference.
    """
    tellers: list[_Teller] = []
    for _ in story(seed, drafts=drafts, tellers=tellers):
        pass
    return tellers[0].answers


def story(seed: int, *, drafts: bool = True, tellers: list[_Teller] | None = None) -> Iterator[str]:
    """Yield what happens, one event a line. tellers: gets the one that tells it."""
    rng = random.Random(seed)
    limits = _limits(rng)
    drafting = _drafting(rng, limits)
    teller = _Teller(limits, drafting if drafts else None)
    if tellers is not None:
        tellers.append(teller)
    arrivals = [(rng.randrange(40), _request(rng, limits)) for _ in range(rng.randint(1, 14))]
    cancels = {rng.randrange(60): rng.random() for _ in range(rng.choice([0, 0, 1, 3]))}
    for turn in range(_TURNS):
        for when, request in arrivals:
            if when == turn:
                yield from teller.add(request)
        if turn in cancels:
            yield from teller.cancel(cancels[turn])
        yield from teller.turn()
        if turn > 60 and not teller.busy:
            return
    raise AssertionError(f"story {seed} does not end")


class _Teller:
    """A scheduler and a device, driven as the engine does."""

    def __init__(self, limits: EngineLimits, drafting: Drafting | None) -> None:
        self.limits = limits
        self.scheduler = Scheduler(limits, parts=[drafting] if drafting else [])
        self._drafting = drafting
        self._free_id = 1
        self._live: list[int] = []
        self._requests: dict[int, EngineRequest] = {}  # by sequence, hypotheses included
        self._flight: list[tuple[Step, StepResult]] = []
        self.answers: dict[int, tuple[list[int], str]] = {}  # tokens and how it ended; "": not yet

    @property
    def busy(self) -> bool:
        return bool(len(self.scheduler.live) or self._flight)

    def add(self, request: EngineRequest) -> Iterator[str]:
        id, width = self._free_id, 1 if request.beams is None else request.beams.size
        try:
            sequence = new_sequence(id, request, self.limits)
            if (over := finish_of(request, self.limits)) is not None:
                yield f"over {over}"
                return
        except SaxError as error:
            yield f"refused {error.text}"
            return
        self._free_id += width
        self._requests |= dict.fromkeys(range(id, id + width), request)
        self._live.append(id)
        self.answers[id] = ([], "")
        self.scheduler.add(sequence)
        yield f"add {id}"

    def cancel(self, luck: float) -> Iterator[str]:
        if self._live:
            id = self._live[int(luck * len(self._live))]
            cancelled = self.scheduler.cancel(id)
            if cancelled:
                self.answers[id] = (self.answers[id][0], "cancelled")
            yield f"cancel {id} {cancelled}"

    def turn(self) -> Iterator[str]:
        before = self._flight
        steps = self._schedule()
        self._flight = [(step, self._computed(step, ())) for step in steps]
        for step in steps:
            yield f"step {_step_text(step)}"
        if self.limits.media is not None and (op := self.scheduler.op()) is not None:
            assert isinstance(op, Encode)
            yield f"encode {_text((op.batch.size, op.batch.parts))}"  # by the only encoder
        for step, result in before:
            updates = self.scheduler.commit(step, result)
            for update in updates:
                self._note(update)
                yield f"update {_told(update)}"
        if steps and steps[0].guided:
            masks, failed = self.scheduler.masks(steps[0])
            self._flight = [(steps[0], self._computed(steps[0], masks))]
            yield f"masks {_text(masks)} {[_told(each) for each in failed]}"
        yield self._counters()

    def _note(self, update: SequenceUpdate) -> None:
        tokens, end = self.answers[update.sequence]
        if update.result.token is not None:
            tokens.append(update.result.token)
        self.answers[update.sequence] = tokens, str(update.finish or update.error or end)

    def _schedule(self) -> list[Step]:
        if self.limits.steps_per_launch > 1:
            return self.scheduler.schedule_series()
        step = self.scheduler.schedule()
        return [step] if step else []

    def _counters(self) -> str:
        load = self.scheduler.load()
        names = (
            *("live", "running", "waiting", "slots_used", "pages_used", "window_pages_used"),
            *("pages_cached", "prefix_queries", "prefix_hits", "prefix_evictions", "accounts"),
            *("preemptions", "finished", "cancelled", "tokens", "prefill_tokens", "decode_tokens"),
        )
        told = " ".join(str(getattr(load, name)) for name in names)
        begun = sorted((each.id, each.answer, each.scores) for each in self.scheduler.live.begun())
        drafted = (self._drafting.proposed, self._drafting.accepted) if self._drafting else ()
        return f"counters {told} {begun} {drafted}"

    def _computed(self, step: Step, masks: Seq[SlotMask]) -> StepResult:
        allowed = masks_of_rows(self.limits, step, masks)
        rows = [self._row(*each) for each in zip(step.rows, allowed, strict=True)]
        return StepResult(step.number, tuple(rows))

    def _row(self, row: Row, allowed: np.ndarray | None) -> RowResult:
        end = row.start + row.count
        scored = [-_number(row.sequence, end - n, 1) / 7 for n in range(len(row.targets))]
        result = RowResult(target_logprobs=tuple(scored))
        if row.target_tops is not None:
            tops = tuple(_tops(row.sequence, end - n, row.target_tops) for n in range(len(scored)))
            ranks = tuple(1 + _number(row.sequence, end - n, 2) for n in range(len(scored)))
            result = msgspec.structs.replace(result, target_ranks=ranks, target_tops=tops)
        if not row.yields:
            return result
        request = self._requests[row.sequence]
        token = (3 * row.sequence + 5 * (end % 4)) % VOCAB
        if allowed is not None:
            token = next((token + n) % VOCAB for n in range(VOCAB) if allowed[(token + n) % VOCAB])
        if request.beams is not None:
            token = min(request.stop_ids)
        top = _tops(row.sequence, end, request.sampling.logprobs)
        logprob = -_number(row.sequence, end, 3) / 9
        return msgspec.structs.replace(result, token=token, logprob=logprob, top=top)


def _number(id: int, position: int, kind: int) -> int:
    return (17 * id + 29 * position + 7 * kind + id * position) % 53


def _tops(id: int, position: int, count: int) -> tuple[tuple[int, float], ...]:
    return tuple((_number(id, position, 4 + n), -n - position % 3 / 4) for n in range(count))


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _step_text(step: Step) -> str:
    """As steps were told when the golden file was written, unless draft tokens leave states."""
    told = msgspec.to_builtins(step)
    told[1] = [row[:-1] for row in told[1]]  # no request asks for routes
    told[1] = [row if row[-1] else row[:-1] for row in told[1]]
    return _text(told)


def _told(update: SequenceUpdate) -> str:
    error = None if update.error is None else update.error.text
    told = msgspec.to_builtins(msgspec.structs.replace(update, error=None))
    asked = [told.pop("routes"), told["result"].pop("routes")]
    assert not any(asked), "no request asks for them"
    return f"{_text(told)} {error}"


@dataclass
class _Rules(FakeDrafts):
    """Allows tokens by the answer's length: sometimes one alone, which is forced.

    Some masks come late, some take too long, and some tokens do not fit: they are chosen anew.
    """

    length: int
    ahead: bool  # tells which tokens are forced
    unruly: bool
    taken: int = 0
    asked: int = 0
    last: int = 0
    refused: int = -1  # the length at which a token was refused last

    def begin(self, answer: Seq[int], allowed: tuple[int, ...] | None, left: int | None) -> _Rules:
        made = _Rules(self.length, self.ahead, self.unruly)
        for token in answer:
            made.accept(token)
        return made

    @property
    def finished(self) -> bool:
        return self.taken >= self.length

    @property
    def late(self) -> bool:
        return self.unruly and self.taken % 9 == 5 and self.asked % 2 == 1

    def fits(self, token: int) -> bool:
        if not self.unruly or token % 11 or self.refused == self.taken:
            return True
        self.refused = self.taken
        return False

    def accept(self, token: int) -> None:
        self.taken, self.last = self.taken + 1, token

    def _run(self) -> int:
        """Return how many tokens can only be what they are."""
        return max(0, 4 - self.taken % 7)

    def forced(self) -> tuple[int, ...]:
        if not self.ahead or self.asked == 0:
            return ()
        left = min(self._run(), self.length - self.taken)
        return tuple((self.last + n) % VOCAB for n in range(1, left + 1))

    def drafted(self, count: int) -> bytes | None:
        if self.unruly and (self.taken + count) % 8 == 3:
            return None
        return super().drafted(count)

    def mask(self) -> bytes | None:
        self.asked += 1
        if self.unruly and self.asked % 6 == 4:
            return None
        flags = np.zeros(VOCAB, np.uint8)
        flags[(self.last + 1) % VOCAB if self._run() else slice(0, VOCAB)] = 1
        return np.packbits(flags, bitorder="little").tobytes()


class _Proposer:
    """A draft model that is right now and then."""

    def __init__(self, rows: int) -> None:
        self.ops = {Propose: dict.fromkeys(range(1, rows + 1), 0.001)}

    def do(self, op: Op) -> Pending[Proposals]:
        assert isinstance(op, Propose)
        tokens = [
            tuple((each.token + 5 * n) % VOCAB for n in range(1, each.count + 1))
            for each in op.beginnings
        ]
        return Later(lambda: Proposals(tokens, 0.001))


def _drafting(rng: random.Random, limits: EngineLimits) -> Drafting | None:
    if not limits.draft_tokens:
        return None
    rows, drafts = limits.decodes, None
    proposer: Any = _Proposer(rows)
    if rng.random() < 0.5:
        drafts = Drafts(proposer, limits.page_size)
    return Drafting(limits.draft_tokens, rows, None, drafts)


def _limits(rng: random.Random) -> EngineLimits:
    while True:
        made = EngineLimits(**_sizes(rng))
        try:
            check_limits(made)
        except ValueError:
            continue
        return made


def _sizes(rng: random.Random) -> dict[str, Any]:
    slots, page, block = rng.randint(1, 6), rng.choice([2, 4, 8]), rng.choice([1, 2, 4])
    sizes: dict[str, Any] = {
        "slots": slots,
        "pages": rng.randint(10, 48),
        "page_size": page,
        "max_context": rng.choice([40, 64, 96]),
        "token_budget": slots + block * rng.randint(1, 8),
        "max_logit_rows": slots + rng.choice([1, 2, 8]),
        "prefill_block": block,
        "prefix_cache": rng.choice(["off", "tenant", "tenant"]),
        "max_prefill_blocks": rng.choice([None, None, 1, 3]),
        "max_mixed_blocks": rng.choice([None, None, 1, 2]),
        "max_running_per_account": rng.choice([None, None, 2]),
        "adapters": 2,
    }
    window = rng.choice(["all", "all", "window", "sliding", "recurrent"])
    if window == "window":
        sizes["windows"] = WindowLimits(every=rng.randint(3, 12))
    if window == "sliding":
        sizes["windows"] = WindowLimits(sliding=rng.randint(3, 12))
    if window == "recurrent":
        sizes["windows"] = WindowLimits(sliding=1, recurrent=True)
    speed = rng.choice(["plain", "plain", "draft_tokens", "series"])
    if speed == "draft_tokens":
        more = rng.randint(1, 6)
        sizes |= {"draft_tokens": rng.randint(1, 4), "max_decodes": slots + more}
        sizes["token_budget"] += more
        sizes["max_logit_rows"] += more
    if speed == "series":
        sizes["steps_per_launch"] = rng.randint(2, 4)
    if rng.random() < 0.2:
        sizes["short_context"] = rng.randint(8, 20)
    if rng.random() < 0.3:
        # A chunk of recurrent layers ends where a block does, so that it cannot hold every image.
        together = window != "recurrent" and rng.random() < 0.4
        sizes["media"] = MediaLimits(
            rows=rng.choice([8, 12]),
            width=1,
            encoders=(msgspec.structs.replace(ENCODER, bidirectional=together),),
            triples=not together and rng.random() < 0.3,
        )
    return sizes


_STEM = tuple(range(3, 40))  # that many prompts begin with


def _request(rng: random.Random, limits: EngineLimits) -> EngineRequest:
    length = rng.randint(1, 20)
    shared = rng.choice([0, 0, 4, 8, 13])
    fresh = [rng.randrange(VOCAB) for _ in range(length)]
    prompt = (*_STEM[:shared], *fresh)
    fields: dict[str, Any] = {
        "prompt": prompt,
        "sampling": _sampling(rng),
        "max_tokens": rng.randint(1, 24),
        "stop_ids": frozenset(rng.sample(range(VOCAB), rng.choice([0, 2, 6]))),
        "account": rng.choice("aab"),
        "member": rng.choice(["", "", "x", "y"]),
        "priority": rng.choice([0, 0, 0, 1, -1]),
        "salt": rng.choice(["", "", "s"]),
        "adapter": rng.choice([0, 0, 1, 2]),
        "traced": rng.random() < 0.2,
    }
    kind = rng.choice(
        ["plain", "plain", "plain", "scores", "scored", "beams", "rules", "rules", "media", "moved"]
    )
    if limits.media is not None and rng.random() < 0.4:
        kind = "media"
    _KINDS[kind](rng, limits, fields)
    return EngineRequest(**fields)


def _plain(rng: random.Random, limits: EngineLimits, fields: dict[str, Any]) -> None:
    """Sometimes a request goes on with an answer that was begun elsewhere."""
    if rng.random() < 0.15:
        fields["answer"] = tuple(rng.randrange(VOCAB, 2 * VOCAB) for _ in range(rng.randint(1, 3)))
        fields["max_tokens"] += 4


def _scores(rng: random.Random, limits: EngineLimits, fields: dict[str, Any]) -> None:
    fields["score_from"] = rng.randint(1, max(1, len(fields["prompt"]) - 1))
    fields["max_tokens"] = 0
    fields["score_tops"] = rng.choice([None, None, 0, 2])


def _scored(rng: random.Random, limits: EngineLimits, fields: dict[str, Any]) -> None:
    fields["score_from"] = rng.randint(1, max(1, len(fields["prompt"]) - 1))
    fields["score_tops"] = rng.choice([None, 0, 2])


def _beams(rng: random.Random, limits: EngineLimits, fields: dict[str, Any]) -> None:
    beams = BeamSettings(
        size=rng.randint(1, 4),
        length_penalty=rng.choice([0.0, 0.6, 1.0]),
        early_stopping=rng.random() < 0.3,
        min_tokens=rng.choice([0, 0, 2]),
        tokens_per_beam=rng.choice([0, 0, 3]),
    )
    ends = fields["stop_ids"] or frozenset({7})
    fields |= {"beams": beams, "stop_ids": ends, "sampling": sampling_of(beams, ends)}


def _ruled(rng: random.Random, limits: EngineLimits, fields: dict[str, Any]) -> None:
    fields["grammar"] = _Rules(rng.randint(1, 30), rng.random() < 0.7, rng.random() < 0.4)
    fields["sampling"] = msgspec.structs.replace(fields["sampling"], guided=True)


def _with_media(rng: random.Random, limits: EngineLimits, fields: dict[str, Any]) -> None:
    prompt, spans, at = list(fields["prompt"]), list[MediaSpan](), 0
    for _ in range(rng.randint(1, 3)):
        at = min(at + rng.randint(0, 3), len(prompt))
        size = rng.choice([3, 4, 8])
        prompt[at:at] = [1] * size
        pieces = np.full(size, rng.randrange(4), "<f4").tobytes()
        digest = blake2b(pieces, digest_size=16).digest()
        places = np.zeros(size, "<i4").tobytes()
        spans.append(MediaSpan(digest, ((at, at + size),), size, pieces, places))
        at += size
    fields |= {"prompt": tuple(prompt), "media": tuple(spans)}
    if limits.media is not None and limits.media.triples:
        fields["positions"] = np.zeros((len(prompt), 3), "<i4").tobytes()
        fields["shift"] = -rng.randint(1, 3)


def _moved(rng: random.Random, limits: EngineLimits, fields: dict[str, Any]) -> None:
    """The prompt was computed on another server."""
    fields |= {"answer": (rng.randrange(VOCAB, 2 * VOCAB),), "computed": True}
    fields["max_tokens"] += 1


_KINDS: Mapping[str, Callable[[random.Random, EngineLimits, dict[str, Any]], None]] = {
    "plain": _plain,
    "scores": _scores,
    "scored": _scored,
    "beams": _beams,
    "rules": _ruled,
    "media": _with_media,
    "moved": _moved,
}


def _sampling(rng: random.Random) -> Sampling:
    made = Sampling(rng.choice([0.0, 1.0]), 0, 1.0, rng.randrange(9), rng.choice([0, 0, 2]))
    if rng.random() < 0.2:
        made = msgspec.structs.replace(made, presence_penalty=0.5)
    if rng.random() < 0.1:
        made = msgspec.structs.replace(made, logit_bias=((3, 1.0),), min_tokens=2, ends=(7,))
    if rng.random() < 0.1:
        made = msgspec.structs.replace(made, bad_words=((4, 5),))
    return made


def main() -> None:
    if len(sys.argv) > 1:
        sys.stdout.writelines(f"{event}\n" for event in story(int(sys.argv[1])))
    else:
        GOLDEN.write_text("".join(f"{digest(seed)}\n" for seed in range(STORIES)))


if __name__ == "__main__":
    main()
