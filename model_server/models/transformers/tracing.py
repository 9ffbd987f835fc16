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
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from transformers.initialization import no_init_weights
from transformers.integrations import moe
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from model_server.models.transformers.calls import CallRecorder, mask_of
from model_server.models.transformers.conversion import Conversion, ModelTensors
from model_server.models.transformers.graph import TracedGraphs, TraceRefusal

_OURS = "sax"
_TOKENS = 5  # of the example that is traced; any number that no dimension of a model has
_CHECKS = ("_assert", "sym_constrain", "_guards")  # operations that compute nothing


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
