"""Classes of a checkpoint: the function from logits to scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import jax

from sax.errors import CheckpointError

Activation = Callable[[jax.Array], jax.Array]  # f32[B, labels] -> f32[B, labels]

ACTIVATIONS: Mapping[str, Activation] = {
    "softmax": lambda logits: jax.nn.softmax(logits, axis=-1),
    "sigmoid": jax.nn.sigmoid,
    "none": lambda logits: logits,
}
_BY_PROBLEM = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_BY_TORCH = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
}


def activation_of(config: Mapping[str, Any], labels: int) -> str:
    """Return which function makes scores of logits: as sentence-transformers has it stored, else by
    `problem_type`, else a sigmoid for one label and a softmax for several.

    Raises CheckpointError for one that is not supported.
    """
    own = _sentence_transformers(config)
    if own is not None:
        if own not in _BY_TORCH:
            raise CheckpointError(
                f"config.json makes scores by {own!r}; supported are {', '.join(_BY_TORCH)}: "
                "publish it with CLASSIFY_ACTIVATION to choose one"
            )
        return _BY_TORCH[own]
    problem = config.get("problem_type")
    if problem is None or (problem == "single_label_classification" and labels == 1):
        return "sigmoid" if labels == 1 else "softmax"
    if problem not in _BY_PROBLEM:
        raise CheckpointError(
            f"config.json has problem_type = {problem!r}; supported are {', '.join(_BY_PROBLEM)}"
        )
    return _BY_PROBLEM[problem]


def _sentence_transformers(config: Mapping[str, Any]) -> Any:
    nested = config.get("sentence_transformers")
    if isinstance(nested, dict):
        return cast("dict[str, Any]", nested).get("activation_fn")
    return config.get("sbert_ce_default_activation_function")
