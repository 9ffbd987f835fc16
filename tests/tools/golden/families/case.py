"""A row of the tables of families: what to ask of the small model in a folder of golden/families.

Its config.json is as published checkpoints of the family have it, with small, odd sizes; those of
older families are as older versions of transformers wrote them, and those called `rope_parameters`
as transformers 5 does. Of each family one case's tensors are what transformers itself saves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.tools.golden.common import Changes, Shapes


def _same_name(name: str) -> str:
    return name


def _same_shapes(shapes: Shapes) -> Shapes:
    return shapes


@dataclass(frozen=True, slots=True)
class Case:
    name: str  # of the folder
    tokens: int = 24  # of the prompt
    # Feature -> changes to the config that switch it off: the logits must change, or the case
    # would not notice if the feature were missing.
    without: Mapping[str, Changes] = field(default_factory=dict)
    # Keys that transformers needs to have another value, as of a model type that it does not know.
    known_as: Changes = field(default_factory=dict)
    # What transformers calls a tensor -> what published checkpoints call it.
    published: Callable[[str], str] = _same_name
    # Tensors as transformers saves them -> as published checkpoints hold the same numbers.
    stored: Callable[[Shapes], Shapes] = _same_shapes
    # Tensors that published checkpoints hold and the model does not need, by its config.
    spare: Callable[[Mapping[str, Any]], Shapes] = lambda config: {}
    # Endings of tensors that transformers computes itself where a file does not hold them: what it
    # saves of them is in computed.npz.
    computed: tuple[str, ...] = ()
    # Those that published checkpoints do not hold.
    left_out: tuple[str, ...] = ()
    below: int | None = None  # tokens of a prompt; None: all of the vocabulary but the last few

    @property
    def is_as_saved(self) -> bool:
        """Whether the case's tensors are named and shaped as transformers itself saves them."""
        changed = (self.stored, self.published) != (_same_shapes, _same_name)
        return not (changed or self.left_out or self.known_as)
