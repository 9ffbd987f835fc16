"""Orbax trees whose paths are Hugging Face names.

Either exactly (what `sax convert` writes, one key per tensor), or as in transformers' Flax models,
where the leaf depends on the layer type (kernel, embedding, scale) and matrices are [in, out].
"""

from __future__ import annotations

from collections.abc import Mapping

from model_server.checkpoints.orbax_dialect import Config, Dialect, Part, Rule, Shape


def _exact(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    return ()


def _flax(config: Config, shapes: Mapping[str, Shape]) -> tuple[Rule, ...]:
    return (
        Rule(r"(?P<stem>.+)/kernel", (Part("{stem}.weight", ((1,), (0,))),)),
        Rule(r"(?P<stem>.+)/embedding", (Part("{stem}.weight", ((0,), (1,))),)),
        Rule(r"(?P<stem>.+)/scale", (Part("{stem}.weight", ((0,),)),)),
    )


EXACT = Dialect("Hugging Face names", r".+/weight", _exact)
FLAX = Dialect("transformers' Flax models", r"(?:.+/)?embedding", _flax)
