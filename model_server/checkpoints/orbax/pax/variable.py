"""Declares a variable of a Praxis model: its axes, and the tensors that it holds.

Axes are letters: D model, H query heads, K key and value heads, Q head size, F feed-forward, V
vocabulary, P positions, L layers, and 3 for queries, keys and values in one variable.
"""

from __future__ import annotations

from dataclasses import dataclass

from model_server.checkpoints.orbax.dialect import Part

QKV_AXIS = "3"
LAYER_AXIS = "L"


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor inside a variable."""

    name: str  # {layer} is the layer's number
    dims: str  # letters of the variable's axes; those of one dimension together: "HQ,D"
    take: int | None = None  # of the axis of queries, keys and values
    paired: bool = False  # rotary pairs are neighbours on the last axis of the first dimension
    offset: float = 0.0  # added: norms may store their scale minus one


@dataclass(frozen=True, slots=True)
class PaxVariable:
    """A variable. Whoever writes a Pax checkpoint stores each as an array of its own."""

    axes: str
    targets: tuple[Target, ...] = ()  # (): used otherwise
    needed: bool = True

    @property
    def scale(self) -> PaxVariable | None:
        """Return the scale of this variable if it is quantised; None: it never is."""
        summed = next((t.dims.partition(",")[2] for t in self.targets), "")
        return PaxVariable("".join(a for a in self.axes if a not in summed)) if summed else None

    def parts(self, *, stacked: bool) -> tuple[Part, ...]:
        """Return how to read its tensors; `stacked`: all layers lie along its first axis."""
        axes = LAYER_AXIS + self.axes if stacked else self.axes
        return tuple(_part(target, axes) for target in self.targets)


def _part(target: Target, axes: str) -> Part:
    dims = tuple(tuple(map(axes.index, letters)) for letters in target.dims.split(","))
    take = () if target.take is None else ((axes.index(QKV_AXIS), target.take),)
    each = (("layer", 0),) if axes.startswith(LAYER_AXIS) else ()
    return Part(target.name, dims, take, each, offset=target.offset, paired=target.paired)


def one(
    name: str, axes: str, dims: str, *, paired: bool = False, offset: float = 0.0
) -> PaxVariable:
    """Declare a variable that holds one tensor."""
    return PaxVariable(axes, (Target(name, dims, paired=paired, offset=offset),))
