"""Traces a causal language model of transformers, in a process of its own: `python -m` this module.

The model is built from its configuration without weights, and run once by `torch.export` over
tokens of an unknown number of sequences of one token each. So no operation of transformers' code
can mix two tokens, whatever it does along a sequence; tokens meet in the attention function alone,
which is registered here and becomes the server's paged attention. No code of a checkpoint runs.

Standard input: config.json. The first argument: the file for the result, a pickled `TracedGraphs`,
or the text of a refusal.
"""

# Only the extra `torch` brings what this file imports.
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import operator
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from transformers.activations import ACT2CLS
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    PrefixChange,
    WeightConverter,
)
from transformers.initialization import no_init_weights
from transformers.integrations import moe
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from model_server.models.transformers.graph import (
    AttentionCall,
    ExpertsCall,
    Graph,
    Operation,
    StoredParameter,
    TracedGraphs,
    TraceRefusal,
    Value,
)

_OURS = "sax"
_TOKENS = 5  # of the example that is traced; any number that no dimension of a model has


# The operations of the server's own.


@torch.library.custom_op("sax::attend", mutates_args=())
def _attend(
    query: torch.Tensor,  # [T, H, 1, Q]
    key: torch.Tensor,  # [T, K, 1, Q]
    value: torch.Tensor,  # [T, K, 1, W]
    sinks: torch.Tensor | None,  # [H]
    call: int,
) -> torch.Tensor:
    raise NotImplementedError("it is traced only")


@_attend.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sinks: torch.Tensor | None,
    call: int,
) -> torch.Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


@torch.library.custom_op("sax::experts", mutates_args=())
def _experts(
    x: torch.Tensor,  # [T, D]
    experts: torch.Tensor,  # [T, k]
    weights: torch.Tensor,  # [T, k]
    first: torch.Tensor,
    second: torch.Tensor,
    call: int,
) -> torch.Tensor:
    raise NotImplementedError("it is traced only")


@_experts.register_fake
def _(
    x: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    call: int,
) -> torch.Tensor:
    return torch.empty_like(x)


OWN_MASK = "it computes its attention mask in a way of its own"


class Mask:
    """Stands for the mask of a layer. Whatever reads it as a tensor is refused."""

    def __init__(self, window: int | None = None, chunk: int | None = None) -> None:
        self.window = window
        self.chunk = chunk

    def __getattr__(self, name: str) -> Any:
        raise TraceRefusal(OWN_MASK)

    def __getitem__(self, index: Any) -> Any:
        raise TraceRefusal(OWN_MASK)


# Arguments of transformers' attention functions that change nothing here: the cache is the server's
# pages, and masks alone say what is seen, as in transformers' own `sdpa` function.
_IDLE = {
    *("attention_mask", "cache_position", "dropout", "layer_idx", "output_attentions"),
    *("output_hidden_states", "output_router_logits", "past_key_value", "past_key_values"),
    *("position_embeddings", "position_ids", "return_dict", "sliding_window", "use_cache"),
    *("cache_params", "logits_to_keep", "head_mask"),
}


class CallRecorder:
    """What the functions that transformers calls were given, in the order of the calls."""

    def __init__(self) -> None:
        self.attention: list[AttentionCall] = []
        self.experts: list[torch.nn.Module] = []

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any = None,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        is_causal: bool | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Transformers' attention interface. Returns [T, 1, H, W]."""
        given = sorted(name for name, it in others.items() if it is not None and name not in _IDLE)
        if given:
            raise TraceRefusal(
                f"its attention takes {', '.join(given)}, which paged attention does not compute"
            )
        if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
            raise TraceRefusal("its tokens see those after them")
        if attention_mask is not None and not isinstance(attention_mask, Mask):
            raise TraceRefusal(OWN_MASK)
        if query.shape[2] != 1 or key.shape[2] != 1:
            raise TraceRefusal("its attention puts tokens together before they attend")
        seen = attention_mask or Mask()
        self.attention.append(
            AttentionCall(
                heads=int(query.shape[1]),
                kv_heads=int(key.shape[1]),
                key_dim=int(query.shape[3]),
                value_dim=int(value.shape[3]),
                scale=float(query.shape[3] ** -0.5 if scaling is None else scaling),
                softcap=None if not softcap else float(softcap),
                window=seen.window,
                chunk=seen.chunk,
            )
        )
        made = torch.ops.sax.attend(query, key, value, s_aux, len(self.attention) - 1)
        return made.transpose(1, 2), None

    def route(
        self,
        module: torch.nn.Module,
        hidden_states: torch.Tensor,
        top_k_index: torch.Tensor,
        top_k_weights: torch.Tensor,
    ) -> torch.Tensor:
        """Transformers' experts interface. Returns [T, D]."""
        it: Any = module
        plain = it.has_gate and not it.has_bias and not it.has_post_expert_norm
        own_gate = type(module)._apply_gate is not moe._default_apply_gate
        if not plain or own_gate or not it.is_concatenated:
            raise TraceRefusal(
                f"its experts ({type(module).__name__}) are not plain gated feed-forwards"
            )
        first, second = it.gate_up_proj, it.down_proj
        self.experts.append(module)
        call = len(self.experts) - 1
        return torch.ops.sax.experts(
            hidden_states, top_k_index, top_k_weights, first, second, call
        ).to(hidden_states.dtype)


def mask_of(
    *,
    mask_function: Callable[..., torch.Tensor],
    local_size: int | None = None,
    **_: Any,
) -> Mask:
    """Transformers' mask interface: which of the masks that paged attention knows this one is.

    Compares what it lets through around the border of a window or a chunk.
    """
    size = local_size or 7
    rows = (0, 1, size - 1, size, size + 1, 2 * size, 3 * size + 1)
    possible = {"causal", "window", "chunk"}
    with torch._C.DisableTorchFunction(), _disable_current_modes():  # numbers, not a trace
        columns, zero = torch.arange(3 * size + 5), torch.zeros((), dtype=torch.int64)
        for row in rows:
            try:
                seen = mask_function(zero, zero, torch.tensor(row), columns)
            except Exception as exc:
                raise TraceRefusal("its attention mask depends on more than positions") from exc
            made = _kinds(row, columns, local_size).items()
            seen = torch.as_tensor(seen).expand(columns.shape)
            possible &= {name for name, wanted in made if bool((wanted == seen).all())}
    if "causal" in possible:
        return Mask()
    if "window" in possible:
        return Mask(window=local_size)
    if "chunk" in possible:
        return Mask(chunk=local_size)
    raise TraceRefusal("its attention mask is neither causal, nor a window, nor chunks")


def _kinds(row: int, columns: torch.Tensor, size: int | None) -> dict[str, torch.Tensor]:
    """Return what a query sees, by the kind of mask."""
    causal = columns <= row
    made = {"causal": causal}
    if size is not None:
        made["window"] = causal & (columns > row - size)
        made["chunk"] = causal & (columns >= row // size * size)
    return made


# Building.


@contextmanager
def _without_weights(mode: FakeTensorMode) -> Iterator[None]:
    """Build modules whose parameters take no memory, and whose buffers have their values."""
    registered = torch.nn.Module.register_parameter

    def register(self: Any, name: str, parameter: Any) -> None:
        registered(self, name, parameter)
        if parameter is not None and not isinstance(parameter, FakeTensor):
            fake = mode.from_tensor(parameter.detach())
            self._parameters[name] = torch.nn.Parameter(fake, requires_grad=False)

    torch.nn.Module.register_parameter = register  # pyright: ignore
    try:
        with no_init_weights():
            yield
    finally:
        torch.nn.Module.register_parameter = registered


_STORAGE = ("quantization_config", "compression_config", "auto_map", "torch_dtype", "dtype")


def _build(config: Mapping[str, Any], mode: FakeTensorMode) -> Any:
    """Return the model that transformers has for a configuration, without weights."""
    model_type = config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        raise TraceRefusal(f"transformers has no model_type {model_type!r}")
    plain = {k: v for k, v in config.items() if k not in _STORAGE and not k.startswith("_")}
    plain.pop("attn_implementation", None)
    read = CONFIG_MAPPING[model_type].from_dict(plain)
    if type(read) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise TraceRefusal(
            f"transformers has no causal language model of model_type {model_type!r}"
        )
    _check(read)
    made: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(read)]
    if made._is_stateful:
        raise TraceRefusal(f"{made.__name__} keeps a state of its own in place of keys and values")
    with _without_weights(mode):
        model = made._from_config(
            read, attn_implementation=_OURS, experts_implementation=_OURS, dtype=torch.float32
        )
        model.tie_weights()
    return model.eval()


def _check(config: Any) -> None:
    if getattr(config, "is_encoder_decoder", False):
        raise TraceRefusal("it is an encoder and a decoder; the engine runs decoders alone")
    if getattr(config, "alibi", False):
        raise TraceRefusal(
            "it adds ALiBi biases to its scores, which paged attention does not compute"
        )


class _Hidden(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        made = self.model.base_model(
            input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False
        )
        return made[0]


class _LastStates(BaseModelOutputWithPastAndCrossAttentions):
    """Hidden states; of whatever else a model's layers give there is none."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _GivenStates(torch.nn.Module):
    """In place of the layers: returns the hidden states that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        return self if name == "decoder" else super().__getattr__(name)

    def forward(self, *_: Any, **__: Any) -> _LastStates:
        return _LastStates(last_hidden_state=self.rows)  # pyright: ignore


class _Logits(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.given = _GivenStates()
        setattr(model, model.base_model_prefix, self.given)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.given.rows = rows
        tokens = rows.new_zeros(rows.shape[:2], dtype=torch.int64)
        return self.model(input_ids=tokens, use_cache=False).logits


# Exporting.


def _exported(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
    """Return the module as core operations; the first dimension of all inputs is unknown."""
    unknown = torch.export.Dim.DYNAMIC
    with torch.no_grad():
        made = torch.export.export(
            module, inputs, dynamic_shapes=tuple({0: unknown} for _ in inputs), strict=False
        )
        table = torch.export.default_decompositions()
        table.pop(torch.ops.aten.linear.default, None)
        made = made.run_decompositions(table)
    graph = made.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and any(check in str(node.target) for check in _CHECKS):
            graph.erase_node(node)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
    return made


_CHECKS = ("_assert", "sym_constrain", "_guards")  # operations that compute nothing
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


# What cannot be served.


def _check_modules(model: Any) -> None:
    if any(isinstance(module, torch.nn.Conv1d) for module in model.modules()):
        raise TraceRefusal("it has a convolution over tokens, which keeps a state of its own")


def _check_calls(exported: Any, recorder: CallRecorder, config: Any) -> None:
    layers, calls = getattr(config, "num_hidden_layers", 1), len(recorder.attention)
    if calls < layers:
        raise TraceRefusal(
            f"{calls} of its {layers} layers attend through transformers' attention interface; the "
            "others keep another state, or attend in a way of their own"
        )
    *_, positions, mask = exported.graph.find_nodes(op="placeholder")
    if not positions.users:
        raise TraceRefusal("it counts positions by itself and takes none from the engine")
    if mask.users:
        raise TraceRefusal("it computes with the mask of padding")


# All of it.


def trace(config: Mapping[str, Any]) -> TracedGraphs:
    """Trace the model of a configuration. Raises TraceRefusal, and whatever transformers raises."""
    recorder = CallRecorder()
    ALL_ATTENTION_FUNCTIONS.register(_OURS, recorder.attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(_OURS, mask_of)
    moe.ALL_EXPERTS_FUNCTIONS.register(_OURS, recorder.route)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    model = _build(config, mode)
    _check_modules(model)
    with mode:
        tokens = torch.zeros((_TOKENS, 1), dtype=torch.int64)
        positions, mask = torch.zeros_like(tokens), torch.ones_like(tokens)
    hidden = _exported(_Hidden(model), (tokens, positions, mask))
    _check_calls(hidden, recorder, model.config)
    held = ModelTensors(model, recorder)
    with mode:
        rows = torch.zeros((_TOKENS, 1, _width(hidden)))
    logits = _exported(_Logits(model), (rows,))
    made = [Conversion(each, held.aliases).graph() for each in (hidden, logits)]
    return held.with_graphs(made[0], made[1], _width(hidden), _width(logits), (hidden, logits))


def _width(exported: Any) -> int:
    (output,) = exported.graph.find_nodes(op="output")
    return int(output.args[0][-1].meta["val"].shape[-1])


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


def main() -> None:
    config = json.loads(sys.stdin.read())
    try:
        made: Any = trace(config)
    except TraceRefusal as exc:
        made = str(exc)
    except Exception as exc:
        made = _reason(exc)
    Path(sys.argv[1]).write_bytes(pickle.dumps(made))


def _reason(exc: Exception) -> str:
    """Say in one sentence why transformers' code could not be traced."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, TraceRefusal):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    first = next((line.strip() for line in str(exc).splitlines() if line.strip()), "")
    return f"its code cannot be traced ({type(exc).__name__}: {first[:300]})"


if __name__ == "__main__":
    main()
