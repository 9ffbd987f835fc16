"""The module of a traced model: computes its graphs over a flat batch of tokens and its pages.

A weight that is only multiplied with rows is one of the server's own layers, so it may be
quantised, and on CPUs the native kernels multiply it. All other operations are XLA's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from model_server.checkpoints.region import Region, region_shape
from model_server.kernels.aligned import aligned_empty
from model_server.kernels.media_vectors import MediaVectors
from model_server.kernels.paged import PagedBatch
from model_server.kernels.pages import LayerPages
from model_server.models.layers.activations import activation_of
from model_server.models.layers.experts import Experts, ExpertSources
from model_server.models.layers.layers import Embedding, Linear
from model_server.models.layers.routing import Routes
from model_server.models.transformers.graph import (
    AttentionCall,
    ExpertsCall,
    Graph,
    Operation,
    StoredParameter,
    TracedGraphs,
    Value,
)
from model_server.models.transformers.operators import OPERATORS
from model_server.models.weights.source import (
    Empty,
    Stacked,
    Tensor,
    Tensors,
    Transposed,
    WeightSource,
    source_of,
)
from model_server.models.weights.weight import WeightForm, weight

_LITERAL = 4096  # numbers of a constant that programs hold; more are a weight

_ATTEND, _EXPERTS = "sax.attend.default", "sax.experts.default"
_LINEAR, _EMBEDDING, _ADDMM = (f"aten.{name}.default" for name in ("linear", "embedding", "addmm"))
_OURS = (_ATTEND, _EXPERTS)


def unknown_operations(traced: TracedGraphs) -> list[str]:
    """Return the operations of a model that `OPERATORS` does not have."""
    every = {each.name for graph in (traced.hidden, traced.logits) for each in graph.operations}
    return sorted(every - OPERATORS.keys() - set(_OURS))


@dataclass(frozen=True, slots=True, eq=False)
class Constant(WeightSource):
    """Numbers that were computed from the configuration: no checkpoint has them."""

    numbers: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    def shape(self, tensors: Tensors) -> tuple[int, ...]:
        return self.numbers.shape

    def pieces(self, tensors: Tensors, region: Region) -> Any:
        raise AssertionError("it is read whole")

    def read(
        self, tensors: Tensors, region: Region, dtype: Any = None, empty: Empty = aligned_empty
    ) -> np.ndarray:
        made = empty(region_shape(region), dtype or self.numbers.dtype)
        made[...] = self.numbers[region]
        return made


@dataclass(frozen=True, slots=True)
class Uses:
    """The operations that read each input of the graphs, with the place of the argument."""

    of: Mapping[str, frozenset[tuple[str, int]]]
    biases: Mapping[str, str | None]  # of each kernel; those with several biases are not here
    rowwise: frozenset[str]  # kernels that multiply nothing but one row per token

    @classmethod
    def within(cls, traced: TracedGraphs) -> Uses:
        found: dict[str, set[tuple[str, int]]] = {}
        biases: dict[str, set[str | None]] = {}
        for graph in (traced.hidden, traced.logits):
            for operation in graph.operations:
                for place, given in enumerate(operation.arguments):
                    for name in _inputs_in(graph, given):
                        found.setdefault(name, set()).add((operation.name, place))
                for kernel, bias in _product_of(graph, operation):
                    biases.setdefault(kernel, set()).add(bias)
        single = {name: next(iter(its)) for name, its in biases.items() if len(its) == 1}
        return cls({name: frozenset(its) for name, its in found.items()}, single, traced.rowwise)


def _inputs_in(graph: Graph, given: Any) -> list[str]:
    if isinstance(given, Value):
        return [graph.inputs[given.index]] if given.index < len(graph.inputs) else []
    if isinstance(given, tuple):
        return [name for each in given for name in _inputs_in(graph, each)]
    return []


def _product_of(graph: Graph, operation: Operation) -> list[tuple[str, str | None]]:
    """Return the kernel of a product and its bias, [] if it has none among the inputs."""
    if operation.name == _LINEAR:
        _, kernel, *rest = operation.arguments
        bias = rest[0] if rest else None
    elif operation.name == _ADDMM and not operation.settings:
        bias, _, kernel = operation.arguments
    else:
        return []
    kernels = _inputs_in(graph, kernel)
    biases = _inputs_in(graph, bias)
    if not kernels or (bias is not None and not biases):
        return []
    return [(kernels[0], biases[0] if biases else None)]


class TracedModel(nnx.Module):
    """Maps tokens to hidden states, and hidden states to logits, as `engine.PagedModel`."""

    def __init__(self, traced: TracedGraphs, form: WeightForm) -> None:
        self.program = _TracedProgram(traced)
        plan = _WeightPlan(traced, form)
        self.head: Linear | None = plan.head()
        self.embedding: Embedding | None = plan.embedding()
        self.parts = nnx.List([part for _, part in plan.others()])
        self.names = plan.names
        self.head_name, self.embedding_name = plan.head_name, plan.embedding_name

    def __call__(
        self,
        tokens: jax.Array,  # i32[T]
        positions: jax.Array,  # i32[T]
        pages: Sequence[LayerPages],
        batch: PagedBatch,
        media: MediaVectors | None = None,
    ) -> tuple[jax.Array, tuple[LayerPages, ...]]:
        """Returns the last hidden states f32[T, D] and the pages with the new tokens written."""
        written = list(pages)
        attend = partial(_attend, self.program.attention, batch, written)
        given = {
            "tokens": tokens[:, None],
            "positions": positions[:, None],
            "mask": jnp.ones_like(tokens)[:, None],
        }
        made = self._run(self.program.hidden, given, {_ATTEND: attend})
        return made[:, 0].astype(jnp.float32), tuple(written)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Maps f32[R, D] to f32[R, V]."""
        return self._run(self.program.logits, {"rows": hidden[:, None]}, {})[:, 0].astype(
            jnp.float32
        )

    def _run(
        self, graph: Graph, given: Mapping[str, jax.Array], more: Mapping[str, Callable[..., Any]]
    ) -> jax.Array:
        functions = {**OPERATORS, **_OWN, **more}
        held = self._held() | dict(given)
        values: list[Any] = [held.get(name) for name in graph.inputs]
        with jax.numpy_rank_promotion("allow"):  # as torch broadcasts
            for each in graph.operations:
                arguments = _filled(each.arguments, values)
                settings = {name: _filled(it, values) for name, it in each.settings.items()}
                values.append(functions[each.name](*arguments, **settings))
        return values[graph.output.index]

    def _held(self) -> dict[str, Any]:
        """Return what each input of the graphs is: a layer, or an array."""
        made: dict[str, Any] = {n: jnp.asarray(it) for n, it in self.program.literals.items()}
        for name, part in zip(self.names, self.parts, strict=True):
            made[name] = part.numbers if isinstance(part, RawWeight) else part
        if self.head is not None:
            made[self.head_name] = self.head
        if self.embedding is not None:
            made[self.embedding_name] = self.embedding
        return made


class RawWeight(nnx.Module):
    """A weight that operations read as an array."""

    def __init__(
        self, shape: tuple[int, ...], source: WeightSource, dtype: Any, spread: float | None
    ) -> None:
        self.value = weight(shape, (None,) * len(shape), source, dtype=dtype, spread=spread)

    @property
    def numbers(self) -> jax.Array:
        held = self.value[...]
        return held.astype(jnp.float32) if held.dtype == jnp.bfloat16 else held


class _TracedProgram:
    """What a module computes, beside its weights; equal to itself alone."""

    def __init__(self, traced: TracedGraphs) -> None:
        self.hidden, self.logits = traced.hidden, traced.logits
        self.attention = traced.attention
        small = (item for item in traced.constants.items() if item[1].size <= _LITERAL)
        self.literals = dict(small)


class _WeightPlan:
    """Which layer each weight becomes, by the operations that read it."""

    def __init__(self, traced: TracedGraphs, form: WeightForm) -> None:
        self._traced, self._form, self._uses = traced, form, Uses.within(traced)
        self._experts = {call.first: call for call in traced.experts}
        self.head_name = self._found_head() or ""
        self.embedding_name = self._found_embedding() or ""
        taken = {self._uses.biases.get(name) for name in self._linears()}
        taken |= {self.head_name, self.embedding_name} | {c.second for c in traced.experts}
        shapes = [name for name in traced.shapes if name not in taken]
        large = [name for name, it in traced.constants.items() if it.size > _LITERAL]
        self.names = (*shapes, *large)

    def head(self) -> Linear | None:
        return self._linear(self.head_name) if self.head_name else None

    def embedding(self) -> Embedding | None:
        if not self.embedding_name:
            return None
        vocab, size = self._traced.shapes[self.embedding_name]
        return Embedding(vocab, size, self._source(self.embedding_name), form=self._form)

    def others(self) -> list[tuple[str, nnx.Module]]:
        return [(name, self._part(name)) for name in self.names]

    def _part(self, name: str) -> nnx.Module:
        if (call := self._experts.get(name)) is not None:
            return _experts_of(call, self._traced.stored, self._form)
        if (constant := self._traced.constants.get(name)) is not None:
            return RawWeight(constant.shape, Constant(constant), constant.dtype, None)
        if name in self._linears():
            return self._linear(name)
        shape = self._traced.shapes[name]
        if name in self._traced.whole_numbers:
            return RawWeight(shape, self._source(name), jnp.int32, None)
        dtype = self._form.dtype if len(shape) > 1 else jnp.float32
        return RawWeight(shape, self._source(name), dtype, 0.02)

    def _linear(self, name: str) -> Linear:
        turned = _is_turned(self._uses, name)
        source = self._source(name)
        shape = self._traced.shapes[name]
        outputs, inputs = reversed(shape) if turned else shape
        bias = self._uses.biases[name]
        return Linear(
            outputs,
            inputs,
            ("vocab" if name == self.head_name else "ffw", "embed"),
            Transposed(source) if turned else source,
            form=self._form,
            bias=None if bias is None else self._source(bias),
        )

    def _linears(self) -> list[str]:
        """Return the kernels that only multiply one row per token, with biases of their own."""
        uses, made = self._uses, list[str]()
        for name, bias in uses.biases.items():
            kinds = uses.of[name]
            alone = kinds in ({(_LINEAR, 1)}, {(_ADDMM, 2)})
            owned = bias is None or len(uses.of[bias]) == 1
            once = bias is None or list(uses.biases.values()).count(bias) == 1
            if alone and owned and once and name in uses.rowwise and self._is_plain(name):
                made.append(name)
        of_rows = [name for name in made if name in self._traced.logits.inputs]
        # The native kernels know the rows of one product of logits, which is the head's.
        return made if len(of_rows) < 2 else [name for name in made if name not in of_rows]

    def _is_plain(self, name: str) -> bool:
        return (
            len(self._traced.shapes.get(name, ())) == 2 and name not in self._traced.whole_numbers
        )

    def _found_head(self) -> str | None:
        """Return the kernel of the logits, if one of its own makes them."""
        graph = self._traced.logits
        found = [name for name in graph.inputs if name in self._linears()]
        return found[0] if len(found) == 1 else None

    def _found_embedding(self) -> str | None:
        """Return the table that tokens are looked up in, if nothing but a tied head shares it."""
        graph = self._traced.hidden
        tokens = Value(graph.inputs.index("tokens"))
        for operation in graph.operations:
            if operation.name == _EMBEDDING and operation.arguments[1] == tokens:
                (name,) = _inputs_in(graph, operation.arguments[0]) or ("",)
                kinds = self._uses.of.get(name, frozenset())
                tied = kinds - {(_EMBEDDING, 0)}
                if not tied or (tied == {(_LINEAR, 1)} and self._uses.biases.get(name, "") is None):
                    return name
        return None

    def _source(self, name: str) -> WeightSource:
        return source_of(self._traced.stored[name].names)


def _is_turned(uses: Uses, name: str) -> bool:
    return uses.of[name] == {(_ADDMM, 2)}


def _experts_of(
    call: ExpertsCall, stored: Mapping[str, StoredParameter], form: WeightForm
) -> Experts:
    first, second = stored[call.first], stored[call.second]
    if first.gates:
        named = first.gates, first.names, second.names
        gate, up, down = (Stacked(tuple(map(Tensor, of))) for of in named)
        sources = ExpertSources(count=call.count, gate=gate, up=up, down=down)
    else:
        (both,), (down,) = first.names, second.names
        sources = ExpertSources.together(
            call.count, call.ffw, gate_up=both, down=down, turned=call.turned
        )
    activation = activation_of(call.activation)
    return Experts(call.embed, call.ffw, sources, activation=activation, form=form)


def _filled(given: Any, values: Sequence[Any]) -> Any:
    if isinstance(given, Value):
        return values[given.index]
    return tuple(_filled(each, values) for each in given) if isinstance(given, tuple) else given


def _attend(
    calls: Sequence[AttentionCall],
    batch: PagedBatch,
    pages: list[Any],
    query: jax.Array,  # f32[T, H, 1, Q]
    key: jax.Array,
    value: jax.Array,
    sinks: jax.Array | None,
    call: int,
) -> jax.Array:
    """f32[T, H, 1, W]; writes the new keys and values into the pages of the call."""
    how = calls[call]
    made, pages[call] = batch.attend(
        pages[call],
        *(each[:, :, 0].astype(jnp.float32) for each in (query, key, value)),
        scale=how.scale,
        softcap=how.softcap,
        window=how.window,
        chunk=how.chunk,
        sinks=sinks,
    )
    return made[:, :, None]


def _linear(x: jax.Array, kernel: Any, bias: Any = None) -> jax.Array:
    if isinstance(kernel, Linear):
        return kernel(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)
    if isinstance(kernel, Embedding):
        return kernel.logits(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:-1], -1)
    return OPERATORS[_LINEAR](x, kernel, bias)


def _addmm(bias: Any, x: jax.Array, kernel: Any, **settings: Any) -> jax.Array:
    return (
        kernel(x) if isinstance(kernel, Linear) else OPERATORS[_ADDMM](bias, x, kernel, **settings)
    )


def _embedding(table: Any, tokens: jax.Array, *rest: Any) -> jax.Array:
    if isinstance(table, Embedding):
        return table(tokens.reshape(-1)).reshape(*tokens.shape, -1)
    return OPERATORS[_EMBEDDING](table, tokens, *rest)


def _routed(
    x: jax.Array, experts: jax.Array, weights: jax.Array, first: Experts, second: Any, call: int
) -> jax.Array:
    return first(x, Routes(experts.astype(jnp.int32), weights.astype(jnp.float32)))


_OWN: Mapping[str, Callable[..., Any]] = {
    _ADDMM: _addmm,
    _EMBEDDING: _embedding,
    _EXPERTS: _routed,
    _LINEAR: _linear,
}
