"""A Runner that is arithmetic: real paged memory, and a "model" one can work out by hand.

The memory is a numpy array of pages. A row writes each of its tokens at (page, offset), found
through the granted page table of its slot. The next token is computed from *all* tokens of
positions 0 .. p, read back through that table; the last `sliding_window` must also lie in the
window pages, and the hash is carried from row to row where layers keep a state:

    hash  = 0;  for each token t:  hash = (31 * hash + t + 1) mod 97
    token = (hash + p) mod 97                                    greedy
    token = (hash + p + (seed + 1) * (p + 1)) mod 97             temperature > 0

So a wrong page, a stale one, a wrong start or a lost token changes the answer. By hand: prompt
(5, 8) has hash 31 * (5 + 1) + 8 + 1 = 195 = 1 (mod 97) and p = 1, so the first token is 2. The
decode row feeds 2 at p = 2: the hash is 31 * 1 + 2 + 1 = 34, and the second token is 36.

A token's log-probability is -((hash + token) mod 97) / 97; the likeliest tokens are reported as
token, token + 1, token + 2 ... Where only some tokens are allowed, as in a beam search, the
likeliest of them is chosen, and the likeliest of all are reported. Writing through a page that was
not granted is an assertion. The vector of an image's row is one number, the first of its piece, and
stands for that token; reading a row that nothing was encoded into is an error. Where the tokens of
a prompt see each other, each of them but the last is kept as the sum of itself and the hash of
those after it, and counts as that. The device is not
asynchronous: a step is computed in `launch`, in order, as a device would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from msgspec.structs import replace

from model_server.engine.limits import EngineLimits
from model_server.engine.media import EncodeBatch, pack_batch
from model_server.engine.paging.window_pages import window_page_count
from model_server.engine.running.ops import (
    DONE,
    Choose,
    Encode,
    ExportPages,
    ForgetAdapter,
    ImportPages,
    Op,
    Pending,
    ReadAdapter,
    WriteAdapter,
)
from model_server.engine.types import Row, RowResult, Sampling, SlotMask, Step, StepResult, Top
from tests.model_server.engine.fake_drafts import is_draft, masks_of_rows
from tests.model_server.engine.fake_pages import FakePages
from tests.model_server.engine.fake_states import FakeStates
from tests.model_server.engine.fake_traffic import FakeTraffic, MovedRows

VOCAB = 97
GARBAGE = 96  # no token: what pages from elsewhere hold beyond the prompt
GREEDY = Sampling(0.0, 0, 1.0, seed=0)


def hash_of(tokens: Seq[int]) -> int:
    """The whole model."""
    value = 0
    for token in tokens:
        value = next_hash(value, token)
    return value


def next_hash(value: int, token: int) -> int:
    return (31 * value + token + 1) % VOCAB


def seeing_ahead(tokens: Seq[int], runs: Seq[tuple[int, int]]) -> tuple[int, ...]:
    """What tokens count as, of which those of each run see each other."""
    kept = list(tokens)
    for first, end in runs:
        for place in range(first, end - 1):
            kept[place] = (tokens[place] + hash_of(tokens[place + 1 : end])) % VOCAB
    return tuple(kept)


def next_token(tokens: Seq[int], sampling: Sampling = GREEDY, window: int | None = None) -> int:
    """The token after these, of which the last `window` are seen."""
    position = len(tokens) - 1
    token = hash_of(tokens[-window:] if window else tokens) + position
    if sampling.temperature > 0:
        token += (sampling.seed + 1) * (position + 1)
    return token % VOCAB


def logprob(tokens: Seq[int], token: int) -> float:
    """The log-probability of `token` after `tokens`."""
    return -((hash_of(tokens) + token) % VOCAB) / VOCAB


def likeliest(tokens: Seq[int], token: int, count: int) -> Top:
    """The rivals reported beside `token`."""
    rivals = [(token + place) % VOCAB for place in range(count)]
    return tuple((rival, logprob(tokens, rival)) for rival in rivals)


def best_allowed(tokens: Seq[int], allowed: Seq[int]) -> int:
    """The likeliest of these tokens."""
    return max(allowed, key=lambda token: logprob(tokens, token))


def truly_likeliest(tokens: Seq[int], count: int) -> Top:
    """The likeliest tokens of all."""
    ranked = sorted(range(VOCAB), key=lambda token: -logprob(tokens, token))[:count]
    return tuple((token, logprob(tokens, token)) for token in ranked)


def rank(tokens: Seq[int], token: int) -> int:
    """One more than the number of likelier tokens."""
    return 1 + (hash_of(tokens) + token) % VOCAB


def first_allowed(token: int, allowed: np.ndarray) -> int:
    """The first token from this one on, modulo VOCAB, which is allowed: u8[V], 0 or 1."""
    return next((token + n) % VOCAB for n in range(VOCAB) if allowed[(token + n) % VOCAB])


class RunnerBroke(Exception):
    """What a FakeRunner raises at the step it was told to fail at."""


def experts_of(tokens: Seq[int], start: int) -> np.ndarray:
    """u8[n, 2, 1]: a layer's expert is the token's, and another's the position's."""
    places = np.arange(start, start + len(tokens))
    return (np.stack([np.asarray(tokens), places], axis=1)[..., None] % 256).astype(np.uint8)


class FakeRunner:
    """Computes steps by the arithmetic above; counts what is in flight."""

    def __init__(
        self,
        limits: EngineLimits,
        *,
        delay_s: float = 0.0,
        gate: threading.Semaphore | None = None,
        fail_launch: int | None = None,
        fail_result: int | None = None,
        traffic: FakeTraffic | None = None,
        failure: type[Exception] = RunnerBroke,
    ) -> None:
        self.limits = limits
        self.launched = 0
        self.series = 0  # launches of several steps
        self.in_flight = 0
        self.closed = False
        self.delay_s = delay_s  # every result takes this long
        self.gate = gate  # every result waits for one permit
        self.failure = failure  # what it raises then
        self.fail_launch = fail_launch  # the number of the step whose launch raises
        self.fail_result = fail_result  # the number of the step whose result raises
        self.traffic = traffic  # where pages of other runners come from and its own go
        self.imported: list[tuple[int, ...]] = []
        self._launch_seen = threading.Condition()
        self._pages = FakePages(
            limits.pages, limits.page_size, limits.slots, windowed=limits.windows.every is not None
        )
        self._window_pages = None
        if limits.windows.sliding is not None:
            count = window_page_count(limits)
            self._window_pages = FakePages(count, limits.page_size, limits.slots, windowed=True)
        self._states = None
        if limits.windows.recurrent:
            assert self._window_pages is not None, "layers with a state have pages of their own"
            self._states = FakeStates(self._window_pages, limits.prefill_block, next_hash)
        self._samplings = [GREEDY] * limits.slots
        self._unchosen: tuple[Step, _Pending] | None = None
        self._does: dict[type[Op], Callable[[Any], object]] = {
            Choose: self._choose,
            Encode: self._encode,
            ImportPages: self._import,
            ExportPages: self._export,
            # An adapter is a place, and changes no number.
            **dict.fromkeys((ReadAdapter, WriteAdapter, ForgetAdapter), lambda op: None),
        }
        self._last_tokens = [-1] * limits.slots
        self.batches: list[EncodeBatch] = []
        self._media: dict[int, int] = {}  # the token that each row of the buffer stands for
        self._turned = np.zeros((limits.pages + 1, limits.page_size), bool)

    @property
    def ops(self) -> Mapping[type[Op], Mapping[int, float]]:
        return dict.fromkeys(self._does, {})

    def launch(self, *steps: Step) -> Pending[list[StepResult]]:
        """Compute a step or a series now; the results are read later."""
        assert self.in_flight <= self.limits.steps_per_launch, "at most two launches are in flight"
        if len(steps) > 1:
            self._check_series(steps)
        return _Launch([self._launch(step) for step in steps])

    def do(self, op: Op) -> Pending[Any]:
        """Do an op now."""
        self._does[type(op)](op)
        return DONE

    def _check_series(self, steps: Seq[Step]) -> None:
        assert len(steps) == self.limits.steps_per_launch, "its limits allow no such series"
        assert not any(step.guided for step in steps), "masks come between the steps"
        assert not any(step.samplings or step.copies for step in steps[1:]), "these come first"
        rows = [[(row.sequence, row.slot) for row in step.rows] for step in steps]
        assert all(each == rows[0] for each in rows), "a series is of the same sequences"
        assert all(row.is_decode for step in steps for row in step.rows), "a series decodes"
        self.series += 1

    def _launch(self, step: Step) -> _Pending:
        assert not self.closed, "a step was launched on a closed runner"
        assert step.number == self.launched + 1, "steps launch in order"
        if step.number == self.fail_launch:
            raise self.failure(f"launch {step.number}")
        for grant in step.grants:
            self._pages.grant(grant.slot, grant.first, grant.pages)
            if self._window_pages is not None:
                assert len(grant.window_pages) == len(grant.pages), "their tables are equally long"
                self._window_pages.grant(grant.slot, grant.first, grant.window_pages)
        for change in step.samplings:
            self._samplings[change.slot] = change.sampling
        self._copy(step.copies)
        pending = _Pending(self, step.number)
        self._unchosen = (step, pending) if step.guided else None
        if not step.guided:
            pending.rows = self._rows(step, ())
        with self._launch_seen:
            self.in_flight += 1
            self.launched += 1
            self._launch_seen.notify_all()
        return pending

    def _encode(self, op: Encode) -> None:
        """As on a device, steps launched before have read what is overwritten."""
        batch = op.batch
        assert self.limits.media is not None, "its limits allow no images"
        given = pack_batch(batch, self.limits.media)
        assert batch.shape(self.limits.media) in self.limits.media.batches, (
            "only these are compiled"
        )
        for pieces, rows in zip(given.pieces, given.rows, strict=True):
            for piece, row in zip(pieces.tolist(), rows.tolist(), strict=True):
                if row < self.limits.media.rows:
                    self._media[row] = int(piece[0])
        self.batches.append(batch)

    def _choose(self, op: Choose) -> None:
        """Compute the guided step: each token is the first allowed one from the free choice on."""
        assert self._unchosen is not None, "the last step was not guided"
        (step, pending), self._unchosen = self._unchosen, None
        pending.rows = self._rows(step, op.masks)

    def _rows(self, step: Step, masks: Seq[SlotMask]) -> tuple[RowResult, ...]:
        """Run all rows; a slot keeps the last token before the first wrong draft token."""
        made: list[RowResult] = []
        right = True
        for place, allowed in enumerate(masks_of_rows(self.limits, step, masks)):
            row = step.rows[place]
            right = not is_draft(step, place) or (right and row.given == made[-1].token)
            last = self._last_tokens[row.slot]
            made.append(self._run(row, allowed))
            if not right:
                self._last_tokens[row.slot] = last
        return tuple(made)

    def wait_launched(self, number: int) -> None:
        """Until this many steps were launched; 30 s without is a failure."""
        with self._launch_seen:
            assert self._launch_seen.wait_for(lambda: self.launched >= number, 60)

    warmups = 0

    def warm(self, index: int) -> None:
        raise AssertionError("there is nothing to warm")

    def close(self) -> None:
        """Nothing is launched from here on."""
        assert not self.closed, "a runner is closed once"
        self.closed = True
        if self.traffic is not None:
            self.traffic.close()

    def _import(self, op: ImportPages) -> None:
        assert self.traffic is not None
        assert set(op.pages) <= set(range(1, self.limits.pages + 1)), "scratch is nobody's"
        moved = self.traffic.take(op.key)
        self._pages.fill(op.pages, moved.rows)
        if self._window_pages is not None:
            assert 0 not in op.window_pages, "those that the next query sees were granted"
            assert moved.window_rows is not None, "pages of these layers move, too"
            self._window_pages.fill(op.window_pages, moved.window_rows)
        if self._states is not None:
            self._states.fill(op.window_pages, moved.states)
        self._turned[list(op.pages)] = moved.long
        self._last_tokens[op.slot] = op.token
        self.imported.append(op.pages)

    def _export(self, op: ExportPages) -> None:
        assert self.traffic is not None
        rows = self._pages.memory[list(op.pages)]
        of_windows = (
            None if self._window_pages is None else self._window_pages.memory[list(op.window_pages)]
        )
        states = () if self._states is None else self._states.of(op.window_pages)
        long = bool(self._turned[op.pages[0], 0])
        self.traffic.offer(op.key, MovedRows(rows, long, of_windows, states))

    def _copy(self, copies: Seq[tuple[int, ...]]) -> None:
        sources, targets = [pair[0] for pair in copies], [pair[1] for pair in copies]
        self._pages.copy(sources, targets)
        self._turned[targets] = self._turned[sources]
        if self._window_pages is not None:
            self._window_pages.copy([pair[2] for pair in copies], [pair[3] for pair in copies])

    def _run(self, row: Row, allowed: np.ndarray | None = None) -> RowResult:
        tokens = tuple(token if token >= 0 else self._media[-1 - token] for token in row.tokens)
        tokens = tokens or (row.given if row.given >= 0 else self._last_tokens[row.slot],)
        if self.limits.bidirectional_prompt and row.media is not None:
            tokens = seeing_ahead(tokens, row.media.together)
        for position, token in enumerate(tokens, row.start):
            self._write(row.slot, position, token, row.long)
        seen = self._read(row, row.start + len(tokens))
        if self._states is not None:
            hashes = self._states.run(row.slot, row.start, tokens, row.state)
            if hashes[-1] != hash_of(seen):
                seen[-1] = GARBAGE  # the state is of other tokens
        self._check_turned(row, len(seen))
        result = self._score(row, seen[:-1] if row.yields else seen)
        if row.routes:
            assert self.limits.routed_experts, "its limits allow no such row"
            result = replace(result, routes=experts_of(tokens, row.start))
        return self._sample(row.slot, seen, result, allowed) if row.yields else result

    def _check_turned(self, row: Row, count: int) -> None:
        """All tokens that a row sees are rotated alike, by the factors for their number."""
        short = self.limits.short_context
        turned = self._turned[self._pages.tables[row.slot]].reshape(-1)[:count]
        assert (turned == row.long).all(), "short and long factors are mixed"
        if row.long:
            assert short is not None, "a model with one list has no long factors"
        elif short is not None:
            assert count <= short, "a long sequence has short factors"

    def _write(self, slot: int, position: int, token: int, long: bool) -> None:
        self._turned[self._pages.write(slot, position, token)] = long
        if self._window_pages is not None:
            self._window_pages.write(slot, position, token)

    def _read(self, row: Row, count: int) -> list[int]:
        """The tokens that a row sees; those that only one kind of layer sees are garbage."""
        seen = self._pages.read(row.slot, count)
        if self._window_pages is not None and self._states is None:  # else these hold states alone
            assert self.limits.windows.sliding is not None
            own = self._window_pages.read(row.slot, count)
            first = max(0, row.start + 1 - self.limits.windows.sliding)
            pairs = zip(seen[first:], own[first:], strict=True)
            seen[first:] = [one if one == other else GARBAGE for one, other in pairs]
        return seen

    def _score(self, row: Row, seen: list[int]) -> RowResult:
        ends = range(len(seen) - len(row.targets) + 1, len(seen) + 1)
        pairs = list(zip(ends, row.targets, strict=True))
        scores = tuple(logprob(seen[:end], target) for end, target in pairs)
        if row.target_tops is None:
            return RowResult(target_logprobs=scores)
        ranks = tuple(rank(seen[:end], target) for end, target in pairs)
        tops = tuple(likeliest(seen[:end], target, row.target_tops) for end, target in pairs)
        return RowResult(target_logprobs=scores, target_ranks=ranks, target_tops=tops)

    def _sample(
        self, slot: int, seen: list[int], scored: RowResult, allowed: np.ndarray | None
    ) -> RowResult:
        sampling = self._samplings[slot]
        token = next_token(seen, sampling, self.limits.windows.every)
        if allowed is not None:
            token = first_allowed(token, allowed)
        top = likeliest(seen, token, sampling.logprobs)
        if sampling.allowed is not None:
            seen = seen[-self.limits.windows.every :] if self.limits.windows.every else seen
            token = best_allowed(seen, sampling.allowed)
            top = truly_likeliest(seen, sampling.logprobs)
        self._last_tokens[slot] = token
        return replace(scored, token=token, logprob=logprob(seen, token), top=top)


class _Launch:
    """The steps of one launch, which wait to be read."""

    def __init__(self, steps: list[_Pending]) -> None:
        self._steps = steps

    def result(self) -> list[StepResult]:
        return [step.result() for step in self._steps]


class _Pending:
    """A step that was computed and waits to be read."""

    def __init__(self, runner: FakeRunner, number: int) -> None:
        self._runner = runner
        self._number = number
        self.rows: tuple[RowResult, ...] | None = None  # None: waits for masks

    def result(self) -> StepResult:
        if self._runner.gate:
            assert self._runner.gate.acquire(timeout=60), "the test never opened the gate"
        if self._runner.delay_s:
            time.sleep(self._runner.delay_s)
        self._runner.in_flight -= 1
        if self._number == self._runner.fail_result:
            raise self._runner.failure(f"result {self._number}")
        assert self.rows is not None, "its tokens were not chosen"
        return StepResult(self._number, self.rows)
