"""One shrunken random model whose logits are stored. Knows no transformers and no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Shapes = dict[str, tuple[int, ...]]


def same_name(name: str) -> str:
    return name


def same_tensors(shapes: Shapes) -> Shapes:
    return shapes


def nothing(config: Mapping[str, Any]) -> Shapes:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A config.json as published checkpoints of its family have it, and what to ask of it."""

    name: str  # of the folder
    config: dict[str, Any]
    tokens: int = 24  # of the prompt
    # Feature -> changes to the config that switch it off: the logits must change, or the case
    # would not notice if the feature were missing.
    without: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # Keys that transformers needs to have another value, as of a model type that it does not know.
    known_as: Mapping[str, Any] = field(default_factory=dict)
    # What transformers calls a tensor -> what published checkpoints call it.
    published: Callable[[str], str] = same_name
    # Tensors as transformers saves them -> as published checkpoints hold the same numbers.
    stored: Callable[[Shapes], Shapes] = same_tensors
    # Tensors that published checkpoints hold and the model does not need.
    spare: Callable[[Mapping[str, Any]], Shapes] = nothing
    # Endings of tensors that transformers computes itself where a file does not hold them.
    computed: tuple[str, ...] = ()
    # Override texts that the model is served with.
    overrides: Mapping[str, str] = field(default_factory=dict)

    def config_without(self, feature: str) -> dict[str, Any]:
        return self.config | dict(self.without[feature])
