"""Prompts whose tokens all see each other: one chunk holds what is left of each, and its keys and
values serve the same prompt alone. Pure.

The tokens of an answer see what is before them, also when they are computed again with the prompt.
Of a request that only scores, the prompt is what comes before the first score.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

from msgspec.structs import replace

from model_server.engine.limits import EngineLimits
from model_server.engine.media import RowMedia
from model_server.engine.part import EnginePart
from model_server.engine.request import EngineRequest
from model_server.engine.sequence import Sequence
from model_server.engine.step_builder import StepBuilder
from model_server.engine.types import Row
from sax.errors import InvalidRequest, PromptTooLong


class BidirectionalPrompts(EnginePart[str]):
    """Keeps a digest of each prompt, which salts its pages."""

    @classmethod
    def is_wanted(cls, limits: EngineLimits) -> bool:
        return limits.bidirectional_prompt > 0

    @classmethod
    def check(cls, request: EngineRequest, limits: EngineLimits, context: int) -> None:
        if not cls.is_wanted(limits):
            return
        first, end, most = request.score_from, _end(request), limits.bidirectional_prompt
        if first is not None and (request.max_tokens or request.score_tops is not None):
            raise InvalidRequest(
                "tokens of a prompt have no log-probabilities: in this model each sees those after "
                "it. Leave prompt_logprobs out, or score a text behind a prompt",
                param="prompt_logprobs",
            )
        if end > most:
            raise PromptTooLong(
                f"the prompt has {end} tokens, images included; they see each other in this model, "
                f"which therefore reads prompts in one piece, of at most {most} tokens here: "
                "shorten the prompt, or send fewer images",
                param="prompt",
            )
        _check_rows(request, limits)

    def begin(self, sequence: Sequence) -> str:
        tokens = array("q", sequence.tokens[: _end(sequence.request)])
        return blake2b(tokens.tobytes(), digest_size=16, person=b"whole prompt").hexdigest()

    def salt(self, sequence: Sequence) -> str:
        return self.of[sequence.id]

    def before_rows(self, step: StepBuilder, *, late: bool) -> None:
        """Reserve the blocks of a prompt: streams of forced tokens could take them for ever."""
        most = max(map(self._blocks, self._waiting()), default=0)
        step.reserved = max(step.reserved, most)

    def is_urgent(self, sequence: Sequence) -> bool:
        """The one that has waited longest comes first: short ones could take the blocks it needs
        for ever."""
        return sequence is next(filter(_left, self._waiting()), None)

    def chunk_blocks(self, sequence: Sequence, blocks: int, most: int) -> int:
        whole = self._blocks(sequence)
        return max(blocks, whole) if whole <= most else blocks

    def chunk_length(self, sequence: Sequence, length: int, logit_rows: int) -> int:
        return length if length >= _left(sequence) else 0

    def fill(self, sequence: Sequence, row: Row) -> Row:
        left = _left(sequence)
        if left < 2:
            return row
        return replace(row, media=replace(row.media or RowMedia(), together=((0, left),)))

    def _waiting(self) -> Iterator[Sequence]:
        """Yield those that are not all computed, in order of admission."""
        return (each for each in self.live.running if each.launched < each.goal)

    def _blocks(self, sequence: Sequence) -> int:
        """Return the blocks of the chunk that holds what is left of its prompt."""
        return -(-_left(sequence) // self.limits.prefill_block)


def _end(request: EngineRequest) -> int:
    """Return the first position whose token sees only what is before it."""
    return len(request.prompt) if request.score_from is None else request.score_from


def _left(sequence: Sequence) -> int:
    """Return the tokens of its prompt that are still to be computed."""
    return max(0, _end(sequence.request) - sequence.launched)


def _check_rows(request: EngineRequest, limits: EngineLimits) -> None:
    """Raise InvalidRequest for images whose vectors cannot be in memory at once."""
    rows = sum({span.digest: span.rows for span in request.media}.values())
    if limits.media is not None and rows > limits.media.rows:
        raise InvalidRequest(
            f"the images of the prompt have {rows} vectors, which are needed at once, and there "
            f"is memory for {limits.media.rows}: send fewer images, or publish the model with a "
            "larger MEDIA_ROWS",
            param="messages",
        )
