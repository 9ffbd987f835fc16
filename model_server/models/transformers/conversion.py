"""Turns exported programs into graphs, and finds the weights and constants that they read."""

# Only the extra `torch` brings what this file imports.
# pyright: reportMissingImports=false

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from transformers.activations import ACT2CLS
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    PrefixChange,
    WeightConverter,
)

from model_server.models.transformers.calls import CallRecorder
from model_server.models.transformers.graph import (
    ExpertsCall,
    Graph,
    Operation,
    StoredParameter,
    TracedGraphs,
    TraceRefusal,
    Value,
)

_DTYPES = {
    torch.float64: "float32",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.int64: "int32",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
}
_DROPPED = ("device", "layout", "memory_format", "pin_memory", "non_blocking", "generator")


class Conversion:
    """Turns one exported program into a `Graph`."""

    def __init__(self, exported: Any, aliases: Mapping[str, str]) -> None:
        signature = exported.graph_signature
        if signature.buffers_to_mutate:
            raise TraceRefusal("it changes tensors of its own as it runs")
        self._exported = exported
        self._aliases = aliases
        self._names = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self._values: dict[str, Value] = {}

    def graph(self) -> Graph:
        nodes = list(self._exported.graph.nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        for node in inputs:
            self._values[node.name] = Value(len(self._values))
        operations: list[Operation] = []
        for node in nodes:
            if node.op != "call_function":
                continue
            self._values[node.name] = Value(len(self._values))
            operations.append(self._operation(node))
        output = nodes[-1].args[0][-1]
        names = tuple(self._name(node.name) for node in inputs)
        return Graph(names, tuple(operations), self._values[output.name])

    def _name(self, placeholder: str) -> str:
        """Return the name of a parameter, of the one that it is tied to, or of an input."""
        name = self._names.get(placeholder, placeholder)
        name = name.removeprefix("model.")
        return self._aliases.get(name, name)

    def products(self) -> Iterator[tuple[str, bool]]:
        """Yield the kernel of each product, and whether it multiplies one row per token."""
        kernels = {torch.ops.aten.linear.default: 1, torch.ops.aten.addmm.default: 2}
        for node in self._exported.graph.nodes:
            place = kernels.get(node.target) if node.op == "call_function" else None
            if place is None or node.args[place].op != "placeholder":
                continue
            x = node.args[1 if place == 2 else 0].meta["val"]
            one_row = isinstance(x.shape[0], torch.SymInt) and all(n == 1 for n in x.shape[1:-1])
            yield self._name(node.args[place].name), one_row

    def _operation(self, node: Any) -> Operation:
        return Operation(
            _target(node.target),
            tuple(self._argument(each) for each in node.args),
            {k: self._argument(v) for k, v in node.kwargs.items() if k not in _DROPPED},
        )

    def _argument(self, given: Any) -> Any:
        if isinstance(given, torch.fx.Node):
            return self._values[given.name]
        if isinstance(given, (list, tuple)):
            return tuple(map(self._argument, given))
        if isinstance(given, torch.dtype):
            return _DTYPES[given]
        if isinstance(given, (torch.device, torch.layout, torch.memory_format)):
            return None
        assert given is None or isinstance(given, (bool, int, float, str)), repr(given)
        return given


def _target(target: Any) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return f"python.{target.__name__}"


# Names of a checkpoint.


class Naming:
    """The tensors of a checkpoint that make each parameter, before transformers converts them."""

    def __init__(self, model: Any) -> None:
        self._transforms = list(reversed(get_model_conversion_mapping(model, add_legacy=False)))

    def stored(self, name: str, count: int) -> StoredParameter:
        """Return the tensors of a parameter; count: of experts, if it is of several."""
        made = StoredParameter((name,))
        for transform in self._transforms:
            if isinstance(transform, PrefixChange):
                continue
            back = transform.reverse_transform()
            if not isinstance(transform, WeightConverter):
                made = StoredParameter(*(_renamed(back, of) for of in (made.names, made.gates)))
            elif back.rename_source_key(name)[1] is not None:
                made = _unmerged(transform, back.rename_source_key(name)[0], name)
        if "*" not in made.names[0]:
            return made
        return StoredParameter(*(_numbered(of, count) for of in (made.names, made.gates)))


def _renamed(transform: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(transform.rename_source_key(name)[0] for name in names)


def _numbered(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    return tuple(name.replace("*", str(expert)) for name in names for expert in range(count))


def _unmerged(transform: Any, found: str, name: str) -> StoredParameter:
    """Return the names of what is merged into one tensor of all experts, * for each expert.

    found: what transformers makes of the name with the first of its patterns.
    """
    patterns = [re.sub(r"[\\^$]", "", each) for each in transform._original_source_patterns]
    done = [(type(each), getattr(each, "dim", None)) for each in transform.operations]
    if done == [(MergeModulelist, 0)] and len(patterns) == 1:
        return StoredParameter((found,))
    if done == [(MergeModulelist, 0), (Concatenate, 1)] and len(patterns) == 2:
        gates, ups = patterns
        return StoredParameter((found.replace(gates, ups),), (found,))
    how = ", ".join(type(each).__name__ for each in transform.operations)
    raise TraceRefusal(f"its checkpoints store {name} in another form ({how})")


# All weights.

_ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "quick_gelu")


def _activation(function: Any) -> str:
    for name in _ACTIVATIONS:
        kind = ACT2CLS.get(name)
        kind = kind[0] if isinstance(kind, tuple) else kind
        if kind is not None and type(function) is kind:
            return name
    raise TraceRefusal(f"its experts' activation is {type(function).__name__}")


class ModelTensors:
    """Parameters and buffers of a model, before its layers are taken from it."""

    def __init__(self, model: Any, recorder: CallRecorder) -> None:
        self._model, self._attention = model, tuple(recorder.attention)
        self._class_name = type(model).__name__
        parameters = dict(model.named_parameters(remove_duplicate=False))
        buffers = dict(model.named_buffers(remove_duplicate=False))
        first: dict[int, str] = {}
        self.aliases = {name: first.setdefault(id(it), name) for name, it in parameters.items()}
        kept = model.state_dict().keys()
        self._read = parameters | {name: it for name, it in buffers.items() if name in kept}
        self._made = {name: it for name, it in buffers.items() if name not in kept}
        names = {id(module): name for name, module in model.named_modules()}
        self._experts = tuple(_call(it, names[id(it)]) for it in recorder.experts)
        self._ignored = tuple(map(_literal, model._keys_to_ignore_on_load_unexpected or ()))

    def with_graphs(
        self, hidden: Graph, logits: Graph, embed: int, vocab: int, exported: tuple[Any, Any]
    ) -> TracedGraphs:
        used = {
            name for graph in (hidden, logits) for name in graph.inputs if _is_used(graph, name)
        }
        read = {name: it for name, it in self._read.items() if name in used}
        count = {name: call.count for call in self._experts for name in (call.first, call.second)}
        naming = Naming(self._model)
        stored = {name: naming.stored(name, count.get(name, 0)) for name in read}
        spare = self._read.keys() - used - {n for n, first in self.aliases.items() if n != first}
        unread = [text for name in spare for text in naming.stored(name, 1).names]
        return TracedGraphs(
            class_name=self._class_name,
            hidden=hidden,
            logits=logits,
            attention=self._attention,
            experts=self._experts,
            shapes={name: tuple(map(int, it.shape)) for name, it in read.items()},
            stored=stored,
            whole_numbers=frozenset(n for n, it in read.items() if not it.is_floating_point()),
            rowwise=frozenset(self._rowwise(exported)),
            constants={n: _numbers(n, it) for n, it in self._constants(exported) if n in used},
            unread=(*sorted(unread), *filter(None, self._ignored)),
            embed=embed,
            vocab=vocab,
        )

    def _rowwise(self, exported: tuple[Any, Any]) -> set[str]:
        rows, others = set[str](), set[str]()
        for each in exported:
            convert = Conversion(each, self.aliases)
            for name, one_row in convert.products():
                (rows if one_row else others).add(name)
        return rows - others

    def _constants(self, exported: tuple[Any, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._made.items()
        for each in exported:
            for name in each.graph_signature.inputs_to_lifted_tensor_constants.values():
                yield name.removeprefix("model."), each.constants[name]


def _call(module: Any, name: str) -> ExpertsCall:
    count, outputs, inputs = module.gate_up_proj.shape
    both, embed = (inputs, outputs) if module.is_transposed else (outputs, inputs)
    return ExpertsCall(
        first=f"{name}.gate_up_proj",
        second=f"{name}.down_proj",
        count=int(count),
        embed=int(embed),
        ffw=int(both) // 2,
        activation=_activation(module.act_fn),
        turned=module.is_transposed,
    )


def _is_used(graph: Graph, name: str) -> bool:
    value = Value(graph.inputs.index(name))
    return any(value in _values(operation) for operation in graph.operations)


def _values(operation: Operation) -> set[Value]:
    found: set[Value] = set()
    left: list[Any] = [operation.arguments, tuple(operation.settings.values())]
    while left:
        given = left.pop()
        if isinstance(given, Value):
            found.add(given)
        elif isinstance(given, tuple):
            left.extend(given)
    return found


def _literal(pattern: str) -> str:
    """Return what every name that a pattern matches begins with; "": they differ from the start."""
    found = re.match(r"\^?((?:[\w-]|\\?\.(?![*+?]))*)", pattern)
    text = (found.group(1) if found else "").replace("\\", "")
    return text if "." in text else ""


def _numbers(name: str, tensor: torch.Tensor) -> np.ndarray:
    if isinstance(tensor, FakeTensor) or tensor.is_meta:
        raise TraceRefusal(f"its {name} is computed from weights")
    made = tensor.detach().to(torch.float32) if tensor.is_floating_point() else tensor
    return made.numpy().astype(_DTYPES[tensor.dtype], copy=False)
