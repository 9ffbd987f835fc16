"""ScoredPrompts of a prompt's own tokens: log-probabilities under the logits before each. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from model_server.engine.limits import EngineLimits
from model_server.engine.part import EnginePart
from model_server.engine.request import Begun, EngineRequest, Finish, SequenceUpdate
from model_server.engine.sequence import Committing, Sequence
from model_server.engine.types import Row, RowResult
from sax.errors import InvalidRequest


@dataclass
class _ScoreProgress:
    first: int  # position of the first token to score
    launched: int = 0  # scores requested from the device
    committed: int = 0
    logprobs: list[float] = field(default_factory=list)  # those committed, if all come at the end


class ScoredPrompts(EnginePart[_ScoreProgress]):
    """Has the rows of a prompt score its tokens."""

    @classmethod
    def check(cls, request: EngineRequest, limits: EngineLimits, context: int) -> None:
        first, length = request.score_from, len(request.prompt)
        if first is not None and not 0 < first < length:
            raise InvalidRequest(
                f"cannot score from token {first} of {length}: a score needs at least one token "
                "before it and one to score",
                param="score_from",
            )

    def begin(self, sequence: Sequence) -> _ScoreProgress | None:
        first = sequence.request.score_from
        return None if first is None else _ScoreProgress(first)

    def begun(self, sequence: Sequence, made: Begun) -> Begun:
        return replace(made, scores=self.of[sequence.id].committed)

    def reusable(self, sequence: Sequence, most: int) -> int:
        """Positions whose logits give a score that was not requested are computed."""
        return min(most, self._unscored(sequence))

    def chunk_length(self, sequence: Sequence, length: int, logit_rows: int) -> int:
        unscored, block = self._unscored(sequence), self.limits.prefill_block
        if unscored >= sequence.finish_at:
            return length  # needs at most one logit row
        before = max(unscored - sequence.launched, 0)
        scorable = before + logit_rows
        if length > scorable:
            whole = scorable - scorable % block
            if whole <= before and (sequence.request.media or self.limits.bidirectional_prompt):
                return scorable  # what comes before may be something that no chunk may cut
            return max(whole, min(scorable, block))
        return length

    def fill(self, sequence: Sequence, row: Row) -> Row:
        targets = self._targets(sequence, row.start + row.count)
        if not targets:
            return row
        self.of[sequence.id].launched += len(targets)
        return replace(row, targets=targets, target_tops=sequence.request.score_tops)

    def commit(
        self, sequence: Sequence, row: Row, outcome: RowResult, committing: Committing
    ) -> bool:
        """Tell a row's scores, if they come alone, and end what only scores with the last one.

        Those of a request that only scores, without `score_tops`, all come with it.
        """
        if not row.targets or row.start >= sequence.prompt:
            return False
        scores, request = self.of[sequence.id], sequence.request
        scores.committed += len(row.targets)
        finish: Finish | None = None
        if not sequence.generates and scores.first + scores.committed == sequence.prompt:
            committing.finish(sequence)
            finish = "score"
        if not sequence.generates and request.score_tops is None:
            scores.logprobs += outcome.target_logprobs
            outcome = RowResult(target_logprobs=tuple(scores.logprobs))
            if finish is None:
                return False
        if not row.yields:
            committing.tell(SequenceUpdate(sequence.id, outcome, finish))
        return finish is not None

    def _unscored(self, sequence: Sequence) -> int:
        """Return the first position whose logits give a score not requested yet; else the end."""
        scores = self.of[sequence.id]
        if scores.first + scores.launched == sequence.prompt:
            return sequence.finish_at
        return scores.first - 1 + scores.launched

    def _targets(self, sequence: Sequence, end: int) -> tuple[int, ...]:
        """Return the prompt's tokens that a chunk up to `end` scores.

        Where an answer follows, its tokens were chosen and need no score.
        """
        unscored = self._unscored(sequence)
        if end <= unscored:
            return ()
        scored = min(end + 1, sequence.prompt)
        return tuple(sequence.tokens[max(sequence.launched, unscored) + 1 : scored])
