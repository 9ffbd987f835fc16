"""How clearly a model of routed experts chose: near ties would make golden logits a coin toss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def smallest_margin(model: Any) -> Iterator[list[float]]:
    """While inside, every routing decision adds how far the chosen lay above the others."""
    margins: list[float] = []

    def watch(router: Any, given: Any, out: Any) -> None:
        if len(given) > 1 and given[1] is not None:  # its bias
            return margins.extend(_gap(out[0].sigmoid() + given[1], router.top_k))
        margins.extend(_margins(router, out[0], out[2]))

    kinds = ("topkrouter", "tokenchoicerouter")
    routers = [m for m in model.modules() if type(m).__name__.lower().endswith(kinds)]
    hooks = [router.register_forward_hook(watch) for router in routers]

    def watch_logits(router: Any, _: Any, out: Any) -> None:
        margins.extend(_gap(out[0], router.top_k))

    gates = [m for m in model.modules() if type(m).__name__ == "HunYuanMoEV1Gate"]
    hooks += [router.register_forward_hook(watch_logits) for router in gates]

    def watch_scores(router: Any, _: Any, out: Any) -> None:
        margins.extend(_gap(out[1], router.top_k))

    others = [m for m in model.modules() if type(m).__name__ == "Llama4Router"]
    hooks += [router.register_forward_hook(watch_scores) for router in others]

    def watch_shares(router: Any, _: Any, out: Any) -> None:
        margins.extend(_gap(out[0].log(), router.config.top_k_experts))

    scaled = [m for m in model.modules() if type(m).__name__ == "Gemma4TextRouter"]
    hooks += [router.register_forward_hook(watch_shares) for router in scaled]
    try:
        yield margins
    finally:
        for hook in hooks:
            hook.remove()


def _margins(router: Any, logits: torch.Tensor, chosen: torch.Tensor) -> list[float]:
    """Per token, between experts, and between groups of experts where there are groups."""
    if (statics := getattr(router, "moe_statics", None)) is not None:
        return _gap(statics(logits.softmax(-1)), router.top_k)
    bias = getattr(router, "e_score_correction_bias", None)
    if bias is None:
        return _gap(logits, router.top_k)
    scores = logits.sigmoid() + bias
    if getattr(router, "num_group", None) is None:
        return _gap(scores, router.top_k)
    groups = scores.view(len(scores), router.num_group, -1)
    best = groups.topk(2, dim=-1).values.sum(-1)
    between = _gap(best, router.topk_group) if router.topk_group < router.num_group else []
    kept = torch.zeros_like(best).scatter_(1, best.topk(router.topk_group).indices, 1).bool()
    left = groups.masked_fill(~kept[..., None], float("-inf")).flatten(1)
    assert all(left.gather(1, chosen).isfinite().flatten())
    return between + _gap(left, router.top_k)


def _gap(scores: torch.Tensor, count: int) -> list[float]:
    best = scores.topk(count + 1, dim=-1).values
    return (best[:, count - 1] - best[:, count]).tolist()
