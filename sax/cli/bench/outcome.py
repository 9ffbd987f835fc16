"""The outcome of one request of a benchmark: when its answer came, and how large it was."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Times are in seconds after the start of the benchmark."""

    sent_s: float
    ended_s: float
    pieces_s: tuple[float, ...] = ()  # arrivals of the parts of the answer, a token or more each
    prompt_tokens: int = 0
    tokens: int = 0  # of the answer
    wanted: int = 0  # tokens that were asked for
    error: str = ""  # "": a whole answer

    @property
    def first_s(self) -> float | None:
        """Time to the first token."""
        return self.pieces_s[0] - self.sent_s if self.pieces_s else None

    @property
    def whole_s(self) -> float:
        return self.ended_s - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between parts of the answer, as a reader sees them."""
        return [later - earlier for earlier, later in pairwise(self.pieces_s)]

    @property
    def per_token_s(self) -> float | None:
        """The mean time per token after the first part; None for a single token."""
        if self.tokens < 2 or len(self.pieces_s) < 2:
            return None
        return (self.pieces_s[-1] - self.pieces_s[0]) / (self.tokens - 1)
