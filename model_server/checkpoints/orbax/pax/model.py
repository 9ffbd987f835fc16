"""Recognises a Praxis model by its variables: its architecture, sizes and tensors.

A Pax checkpoint says nothing about itself but the paths and shapes of its variables. Layers are
separate (`x_layers_7`), or stacked along a first axis (`repeat/sub/x_layers_0`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from model_server.checkpoints.orbax.dialect import Rule, Shape
from model_server.checkpoints.orbax.pax.architectures import (
    LAYER_AXIS,
    QKV_AXIS,
    QUERY_SCALE,
    Architecture,
    PaxVariable,
    ProjectionForms,
    architecture_of,
)
from sax.errors import CheckpointError

# Matches a variable of a layer, however deep in a training state it lies.
LAYER_MARK = r"(?:mdl_vars/)?(?:params/)?lm/transformer/(?:repeat/sub/)?x_layers_\d+/.+"
_MODEL = re.compile(r"(?P<prefix>(?:mdl_vars/)?(?:params/)?lm/)(?P<rest>.+)", re.DOTALL)
_LAYER = re.compile(
    r"(?P<stem>transformer/(?P<stacked>repeat/sub/)?x_layers_)(?P<index>\d{1,6})/(?P<rest>.+)",
    re.DOTALL,
)
_SCALE, _ZERO_POINT = "_quantized_scale", "_quantized_zp"  # behind a quantised variable's name
_MOST_LAYERS = 4096
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PraxisModel:
    """A model whose variables are all there and fit each other."""

    architecture: Architecture
    sizes: Mapping[str, int]  # by letter
    variables: Mapping[str, PaxVariable]  # by path
    stacked: bool
    scales: Mapping[str, str]  # path of a quantised variable -> path of its scale

    @property
    def saxml_sizes(self) -> dict[str, int]:
        """Return the sizes under their names in Saxml's classes."""
        return {name: self.sizes[letter] for letter, name in self.architecture.sizes.items()}

    def axes(self, path: str) -> str:
        """Return the letters of a variable's axes."""
        in_layer = self.stacked and _layer_of(path) is not None
        return (LAYER_AXIS if in_layer else "") + self.variables[path].axes

    def rules(self) -> tuple[Rule, ...]:
        """Return a rule for every variable; equal ones of separate layers share theirs."""
        rules = (self._rule(path, variable) for path, variable in self.variables.items())
        return tuple({rule.pattern: rule for rule in rules}.values())

    def query_scales(self) -> dict[int | None, str]:
        """Return the variables that multiply queries, by layer; None: of all, stacked."""
        found = (path for path in self.variables if path.endswith(QUERY_SCALE))
        return {None if self.stacked else _layer_of(path): path for path in found}

    def _rule(self, path: str, variable: PaxVariable) -> Rule:
        pattern, layer = re.escape(path), _layer_of(path)
        stacked = self.stacked and layer is not None
        if layer is not None and not stacked:
            # The pattern puts the layer's number into the names.
            pattern = pattern.replace(f"x_layers_{layer}/", r"x_layers_(?P<layer>\d+)/", 1)
        return Rule(pattern, variable.parts(stacked=stacked))


def praxis_model(shapes: Mapping[str, Shape]) -> PraxisModel:
    """Recognise the model. Raises CheckpointError, naming a missing, unknown or unfit variable."""
    _refuse_zero_points(shapes)
    tree = _LayerTree.of({path: shape for path, shape in shapes.items() if not _is_scale(path)})
    first = tree.layers[min(tree.layers)]
    architecture = architecture_of(set(tree.top), set(first))
    if architecture is None:
        raise CheckpointError(
            f"it holds no model that Saxml serves: among {_named(tree.top.values())} is no "
            "softmax; read are Llama, GPT-J, Gemma, LmCloudSpmd and C4SpmdGpt3"
        )
    variables = dict(_declared(tree, architecture, shapes))
    scales = {path: path + _SCALE for path in variables if path + _SCALE in shapes}
    variables |= dict(_scales(scales, variables))
    if unknown := [path for path in shapes if path not in variables]:
        raise CheckpointError(
            f"it has variables that {architecture.title} does not have: {_named(unknown)}"
        )
    sizes = _AxisSizes(shapes, tree.stacked)
    for path, variable in variables.items():
        sizes.check(path, variable)
    heads = 1 if _attention(tree, shapes).headless else sizes.found["H"]
    whole = {LAYER_AXIS: len(tree.layers), "K": heads, **sizes.found}
    if whole[LAYER_AXIS] > _MOST_LAYERS:
        raise CheckpointError(f"it has {whole[LAYER_AXIS]} layers; at most {_MOST_LAYERS} are read")
    return PraxisModel(architecture, whole, variables, tree.stacked, scales)


@dataclass(frozen=True, slots=True)
class _LayerTree:
    """The variables of a checkpoint, layer by layer."""

    prefix: str  # of the paths of all variables
    stem: str  # of a layer's, without its number
    stacked: bool
    top: dict[str, str]  # path within the model -> whole path
    layers: dict[int, dict[str, str]]  # number -> path within the layer -> whole path

    @classmethod
    def of(cls, shapes: Mapping[str, Shape]) -> _LayerTree:
        top: dict[str, str] = {}
        layers: dict[int, dict[str, str]] = {}
        prefixes: set[str] = set()
        stems: set[str] = set()
        for path in shapes:
            model = _MODEL.fullmatch(path)
            if model is None:
                raise CheckpointError(f"it has variables outside the language model: {_dots(path)}")
            prefixes.add(model["prefix"])
            if layer := _LAYER.fullmatch(model["rest"]):
                stems.add(layer["stem"])
                layers.setdefault(int(layer["index"]), {})[layer["rest"]] = path
            else:
                top[model["rest"]] = path
        tree = cls(prefixes.pop(), stems.pop(), False, top, layers)
        stacked = "repeat/" in tree.stem
        if prefixes or stems or sorted(layers) != list(range(1 if stacked else len(layers))):
            numbers = ", ".join(map(str, sorted(layers)[:_SHOWN]))
            raise CheckpointError(
                f"its layers are neither all separate, from 0 on, nor stacked one by one: "
                f"{_dots(tree.prefix + tree.stem)}N has N = {numbers}, ..."
            )
        return cls(tree.prefix, tree.stem, stacked, top, layers)


def _declared(
    tree: _LayerTree, architecture: Architecture, shapes: Mapping[str, Shape]
) -> Iterator[tuple[str, PaxVariable]]:
    """Yield every variable that the model has, with its path. Raises CheckpointError."""
    yield from _present(architecture.top, tree.top, tree.prefix, architecture)
    stem = tree.prefix + tree.stem
    declared = architecture.layer(_attention(tree, shapes))
    for number, paths in sorted(tree.layers.items()):
        yield from _present(declared, paths, f"{stem}{number}/", architecture)


def _present(
    declared: Mapping[str, PaxVariable], paths: Mapping[str, str], prefix: str, of: Architecture
) -> Iterator[tuple[str, PaxVariable]]:
    for rest, variable in declared.items():
        if rest in paths:
            yield paths[rest], variable
        elif variable.needed:
            raise CheckpointError(
                f"it lacks the variable {_dots(prefix + rest)}, which {of.title} has"
            )


def _attention(tree: _LayerTree, shapes: Mapping[str, Shape]) -> ProjectionForms:
    first = tree.layers[min(tree.layers)]
    key = first.get("self_attention/key/w")
    headless = key is not None and len(shapes[key]) == 2 + tree.stacked
    return ProjectionForms("self_attention/combined_qkv/w" in first, headless)


@dataclass(slots=True)
class _AxisSizes:
    """Sizes of the axes, each taken from the first variable that has it."""

    shapes: Mapping[str, Shape]
    stacked: bool
    found: dict[str, int] = field(default_factory=lambda: {QKV_AXIS: 3})
    said_by: dict[str, str] = field(default_factory=dict)

    def check(self, path: str, variable: PaxVariable) -> None:
        """Raise CheckpointError if the shape contradicts those of variables before it."""
        in_layer = self.stacked and _layer_of(path) is not None
        axes, shape = (LAYER_AXIS if in_layer else "") + variable.axes, self.shapes[path]
        wanted = [self.found.get(letter) for letter in axes]
        fits = len(axes) == len(shape) and all(
            want in (None, have) for want, have in zip(wanted, shape, strict=True)
        )
        if not fits or 0 in shape:
            raise CheckpointError(self._misshapen(path, axes))
        for letter, size in zip(axes, shape, strict=True):
            self.found.setdefault(letter, size)
            self.said_by.setdefault(letter, path)

    def _misshapen(self, path: str, axes: str) -> str:
        wanted = ", ".join(str(self.found.get(letter, letter)) for letter in axes)
        others = {self.said_by[letter] for letter in axes if letter in self.said_by} - {path}
        by = f", as {_named(sorted(others))} say" if others else ""
        return f"variable {_dots(path)} is {list(self.shapes[path])}; it should be [{wanted}]{by}"


def _scales(
    scales: Mapping[str, str], variables: Mapping[str, PaxVariable]
) -> Iterator[tuple[str, PaxVariable]]:
    for path, scale in scales.items():
        if declared := variables[path].scale:
            yield scale, declared


def _is_scale(path: str) -> bool:
    return path.endswith(_SCALE)


def _refuse_zero_points(shapes: Mapping[str, Shape]) -> None:
    if found := [path for path in shapes if path.endswith(_ZERO_POINT)]:
        raise CheckpointError(
            f"its weights were quantised with zero points (it has {_named(found)}), which are not "
            "read: load the checkpoint that it was made from, with QUANTIZE to quantise it as it "
            "is loaded"
        )


def _layer_of(path: str) -> int | None:
    model = _MODEL.fullmatch(path)
    layer = _LAYER.fullmatch(model["rest"]) if model else None
    return int(layer["index"]) if layer else None


def _named(paths: Iterable[str]) -> str:
    names = [_dots(path) for path in paths]
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest


def _dots(path: str) -> str:
    """Spell a path as Pax names the array on disk."""
    return path.rstrip("/").replace("/", ".")
