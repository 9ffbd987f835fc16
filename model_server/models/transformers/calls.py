"""The functions that transformers' code calls in place of its own attention, masks and experts.

They record what they are given and leave one operation each in the trace.
"""

# Only the extra `torch` brings what this file imports.
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from transformers.integrations import moe

from model_server.models.transformers.graph import AttentionCall, TraceRefusal

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
