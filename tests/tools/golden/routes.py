"""Which experts transformers gives each token of the golden prompts of families with experts.

golden.npz: experts u8[S, L, k], the ids that the layers with experts get, in their order, for the
prompt of the family's own golden.npz; how. Weights and settings are those of `families`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.golden import common
from tests.tools.golden.families import maker

_COUNTS = {"num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk", "top_k_experts"}
# The server's test gives models another vocabulary, on whose size Qwen4's n-grams depend.
_LEFT_OUT = {"qwen4_exp"}


def _cases() -> list[str]:
    """Return the first case by name of each family with experts."""
    first: dict[str, str] = {}
    for name in sorted(maker.ROWS):
        whole = common.read_json(maker.FOLDER / name / "config.json")
        config = whole.get("text_config", whole)
        if whole["model_type"].removesuffix("_text") in _LEFT_OUT:
            continue
        if _COUNTS & config.keys() and config.get("enable_moe_block", True):
            first.setdefault(whole["model_type"], name)
    return list(first.values())


CASES = _cases()


def make(name: str, into: Path) -> None:
    """Write one folder. Raises AssertionError if some layer's experts could not be seen."""
    import torch

    folder = maker.FOLDER / name
    case, config = maker.ROWS[name], common.read_json(folder / "config.json")
    shapes = {n: tuple(s) for n, s in common.read_json(folder / "tensors.json").items()}
    prompt = np.load(folder / "golden.npz")["prompt"]
    spare = case.spare(config)
    model = maker.loaded(case, config, {n: s for n, s in shapes.items() if n not in spare})
    with torch.no_grad(), _seen(model, len(prompt)) as seen:
        model(torch.from_numpy(prompt)[None])
    assert seen, f"{name}: no layer has experts"
    (into / name).mkdir(parents=True, exist_ok=True)
    told = "float32, eager attention, weights from random_tensor"
    np.savez_compressed(
        into / name / "golden.npz",
        allow_pickle=False,
        experts=np.stack(seen, axis=1).astype(np.uint8),
        how=np.asarray(common.how("routes", name, told)),
    )


@contextmanager
def _seen(model: Any, tokens: int) -> Iterator[list[np.ndarray]]:
    """While inside, every layer with experts adds the ids that it gets, i64[tokens, k]."""
    seen: list[np.ndarray] = []

    def watch_experts(_: Any, given: Any) -> None:
        seen.append(given[1].reshape(tokens, -1).numpy())

    def watch_router(router: Any, _: Any, out: Any) -> None:
        seen.append(out[1].reshape(tokens, -1).topk(router.top_k).indices.numpy())

    modules = [*model.modules()]
    # Llama 4's experts get all tokens, whose weights are zero where they were not chosen.
    routers = [each for each in modules if type(each).__name__ == "Llama4Router"]
    experts = [each for each in modules if type(each).__name__.endswith("Experts")]
    hooks = [each.register_forward_hook(watch_router) for each in routers]
    if not routers:
        hooks += [each.register_forward_pre_hook(watch_experts) for each in experts]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
