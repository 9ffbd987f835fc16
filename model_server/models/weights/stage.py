"""Layer ranges of pipeline stages. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sax.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers `first .. end - 1`; the first stage also embeds, the last returns logits."""

    index: int
    count: int  # stages of the model
    first: int
    end: int

    @property
    def is_first(self) -> bool:
        return self.index == 0

    @property
    def is_last(self) -> bool:
        return self.index == self.count - 1

    @property
    def layers(self) -> slice:
        return slice(self.first, self.end)

    def __str__(self) -> str:
        held = f"layers {self.first} to {self.end - 1}"
        return f"stage {self.index + 1} of {self.count} ({held})"


def stages_of(layers: int, count: int, inner: Collection[int] = frozenset()) -> tuple[Stage, ...]:
    """Split layers as evenly as possible; later stages are smaller, as the last also has the head.

    inner: layers that no stage may begin with, because they need the one before.

    Raises InvalidRequest if there are more stages than places to cut.
    """
    firsts = [index for index in range(layers) if index not in inner]
    if count > len(firsts):
        others = f", of which {layers - len(firsts)} need the one before" if inner else ""
        raise InvalidRequest(
            f"NUM_STAGES is {count} but this model has {layers} layers{others}: give at most "
            f"{len(firsts)} stages",
            param="overrides.NUM_STAGES",
        )
    least, larger = divmod(layers, count)
    begins = [0]
    for index in range(1, count):
        even, after = index * least + min(index, larger), count - 1 - index
        left = [first for first in firsts if first > begins[-1]]
        begins.append(min(left[: len(left) - after], key=lambda first: abs(first - even)))
    ends = [*begins[1:], layers]
    return tuple(
        Stage(index, count, first, end)
        for index, (first, end) in enumerate(zip(begins, ends, strict=True))
    )
