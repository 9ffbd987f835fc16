"""Checkpoint sources of gpt-oss's experts, which are stored in three ways."""

from __future__ import annotations

from model_server.models.layers.experts import ExpertSources
from model_server.models.weights.source import Portion, Stacked, Tensor, Transposed, WeightSource


def fused(prefix: str, experts: int, ffw: int, packed: bool) -> ExpertSources:
    """All experts in a tensor of gates and ups by turns, and one of downs.

    packed: as MXFP4, [E, out, in]; else the matrices are [E, in, out].
    """

    def matrices(name: str) -> WeightSource:
        stored = Tensor(f"{prefix}.{name}")
        return stored if packed else Transposed(stored)

    def every_other(source: WeightSource, first: int) -> WeightSource:
        return Portion(source, 1, first, 2 * ffw, of=2 * ffw, step=2)

    both, bias = matrices("gate_up_proj"), Tensor(f"{prefix}.gate_up_proj_bias")
    return ExpertSources(
        count=experts,
        gate=every_other(both, 0),
        up=every_other(both, 1),
        down=matrices("down_proj"),
        biases=(every_other(bias, 0), every_other(bias, 1), Tensor(f"{prefix}.down_proj_bias")),
    )


def apart(prefix: str, experts: int) -> ExpertSources:
    """Each matrix and bias of each expert in a tensor of its own."""

    def each(part: str) -> Stacked:
        return Stacked(tuple(Tensor(f"{prefix}.{number}.{part}") for number in range(experts)))

    gate, up, down = ("gate_proj", "up_proj", "down_proj")
    return ExpertSources(
        count=experts,
        gate=each(f"{gate}.weight"),
        up=each(f"{up}.weight"),
        down=each(f"{down}.weight"),
        biases=(each(f"{gate}.bias"), each(f"{up}.bias"), each(f"{down}.bias")),
    )
