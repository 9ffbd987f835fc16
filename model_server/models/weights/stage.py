"""Layer ranges of pipeline stages. Pure arithmetic."""

from __future__ import annotations

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


def stages_of(layers: int, count: int) -> tuple[Stage, ...]:
    """Split layers as evenly as possible; later stages are smaller, as the last also has the head.

    Raises InvalidRequest if there are more stages than layers.
    """
    if count > layers:
        raise InvalidRequest(
            f"NUM_STAGES is {count} but this model has {layers} layers: give at most one stage per "
            "layer",
            param="overrides.NUM_STAGES",
        )
    least, larger = divmod(layers, count)
    ends = [(index + 1) * least + min(index + 1, larger) for index in range(count)]
    firsts = [0, *ends[:-1]]
    return tuple(
        Stage(index, count, first, end)
        for index, (first, end) in enumerate(zip(firsts, ends, strict=True))
    )
