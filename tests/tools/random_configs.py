"""Draws small configs of every family, and compares ours with transformers on random weights.

    python -m tests.tools.random_configs --reference GOLDEN/bin/python [--seed S] [MODEL_TYPE ...]

Two draws for each model_type of tests/golden/families and, with prompts of text, of the whole
models of tests/golden/media: the config.json of one of its cases with other sizes, layers and
settings. The seed is a number, or the day, as 20261129. A draw that our family refuses by name or
that transformers does not run is drawn again. What is left is computed by both: float32, whole, in
chunks and token by token, within 1e-4. A failure prints the draw's name, what it changed and the
command that repeats it.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from model_server.checkpoints.text_part import text_config
from model_server.kernels import xla
from model_server.models.registry import make_recipe
from sax.errors import CheckpointError
from tests.golden.random_tensor import random_tensor  # noqa: F401
from tests.model_server.models import family_cases
from tests.model_server.models.in_steps import InSteps
from tests.model_server.models.media.media_cases import media_case_names, media_config_of
from tests.processes import QUICK_COMPILER

CANDIDATES = 8  # of each draw, of which the first that both sides take is compared
TRIES = 200  # to draw one that our family takes
CHANCE = 0.5  # that a field is changed
CHUNKS = (6, 6)
Draw = Callable[[random.Random, Any], Any]


def among(*values: Any) -> Draw:
    return lambda rng, _: rng.choice(values)


def between(least: int, most: int, step: int = 1) -> Draw:
    return lambda rng, _: rng.randrange(least, most + 1, step)


def scaled(rng: random.Random, value: float) -> float:
    return round(value * rng.uniform(0.5, 2.0), 4)


ROPES = (
    {"rope_type": "linear", "factor": 2.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
)
WIDTHS = between(16, 96, 4)
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
MEDIA = ("image_", "video_", "audio_", "vision_")
OF_MEDIA = "media/"  # begins the names of cases of that kind
# Key of config.json -> what it may become. A key that a config lacks, or has null, stays so.
FIELDS: Mapping[str, Draw] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), between(24, 96, 8)),
    **dict.fromkeys(("num_attention_heads", "n_head"), among(2, 3, 4, 6, 8)),
    **dict.fromkeys(("num_key_value_heads", "multi_query_group_num"), among(1, 2, 3, 4)),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), between(1, 6)),
    **dict.fromkeys(("head_dim", "attention_head_dim"), among(8, 10, 12, 16, 20, 24)),
    **dict.fromkeys(("v_head_dim", "qk_nope_head_dim", "index_head_dim"), among(8, 12, 16)),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), among(4, 6, 8)),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), among(8, 12, 18, 24)),
    **dict.fromkeys(("index_topk", "sliding_window"), between(3, 20)),
    **dict.fromkeys(
        (
            *("intermediate_size", "n_inner", "ffn_dim", "moe_intermediate_size"),
            *("shared_expert_intermediate_size", "shared_intermediate_size"),
            *("moe_shared_expert_intermediate_size",),
        ),
        WIDTHS,
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), among(4, 6, 8, 12)),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "experts_per_token"), among(1, 2, 3)),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts"), among(1, 2)),
    **dict.fromkeys(("n_group", "topk_group"), among(1, 2)),
    **dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), among(0, 1, 2)),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), among(2, 4, 6)),
    "index_n_heads": between(9, 16),  # of few, all scores of some token may be 0: any is chosen
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), among(8, 12, 16)),
    **dict.fromkeys(("linear_conv_kernel_dim", "conv_kernel", "conv_L_cache"), among(2, 3, 4, 5)),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), among(6, 10, 16)),
    **dict.fromkeys(
        (
            *("attention_bias", "mlp_bias", "tie_word_embeddings", "norm_topk_prob", "use_bias"),
            *("use_qk_norm", "qkv_bias", "use_qkv_bias", "attention_out_bias", "conv_bias"),
            *("rope_interleave", "use_parallel_residual", "parallel_attn", "mamba_proj_bias"),
            *("mamba_conv_bias", "use_conv_bias", "qk_layernorm", "tie_embedding"),
        ),
        among(False, True),
    ),
    **dict.fromkeys(("rope_theta", "rope_local_base_freq"), among(100.0, 1e3, 1e4, 5e5)),
    **dict.fromkeys(
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"),
        among(1e-3, 1e-5, 1e-6),
    ),
    **dict.fromkeys(
        (
            *("routed_scaling_factor", "embedding_multiplier", "residual_multiplier"),
            *("attention_multiplier", "logits_scaling", "logit_scale", "query_pre_attn_scalar"),
            *("attn_logit_softcapping", "final_logit_softcapping", "swiglu_limit"),
        ),
        scaled,
    ),
    **dict.fromkeys(ACTIVATIONS, among("silu", "gelu", "gelu_pytorch_tanh", "relu")),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct"), among(0.25, 0.5, 0.75, 1.0)),
    "vocab_size": between(98, 160),
}


def drawn(
    rng: random.Random, config: Mapping[str, Any], kept: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """Return the config of a case with some fields changed, but the kept ones; lists of layers
    follow their number."""
    made = deepcopy(dict(config))
    inner: dict[str, Any] = made.get("text_config", made)
    # Prompts have no tokens of images, which must stay within the vocabulary.
    kept |= {"vocab_size"} if any(key.startswith(MEDIA) for key in made) else set[str]()
    before = _layers(inner)
    for key in sorted(inner.keys() & FIELDS.keys() - kept):
        if _is_changed(key, inner[key]) and rng.random() < CHANCE:
            inner[key] = FIELDS[key](rng, inner[key])
    if "rope_scaling" in inner and rng.random() < CHANCE / 2:
        inner["rope_scaling"] = dict(rng.choice(ROPES))
    _follow(rng, inner, before)
    return made


def _is_changed(key: str, value: Any) -> bool:
    """Whether a field may get another value: a list or none, or a number that switches a part off,
    stays."""
    if isinstance(value, str):
        return key in ACTIVATIONS
    return isinstance(value, bool | float) or (isinstance(value, int) and value > 0)


def _layers(config: Mapping[str, Any]) -> int:
    return next((config[key] for key in ("num_hidden_layers", "n_layer") if key in config), 0)


def _follow(rng: random.Random, config: dict[str, Any], before: int) -> None:
    """Give what is said by layer as many entries as layers, and a hidden size what its heads
    make."""
    layers = _layers(config)
    for key, value in config.items():
        each = value if isinstance(value, list) or key == "hybrid_override_pattern" else []
        if len(each) == before != layers:
            made = [*each[:layers], *(rng.choice(each) for _ in range(layers - before))]
            config[key] = made if isinstance(value, list) else "".join(made)
    heads = next((config[key] for key in ("num_attention_heads", "n_head") if key in config), 0)
    size = next((key for key in ("hidden_size", "n_embd") if key in config), "")
    if heads and size and not config.get("head_dim") and "kv_lora_rank" not in config:
        config[size] = heads * rng.choice((8, 12, 16))


def candidates(model_type: str, seed: int, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names of cases and configs drawn from them that our family takes, without an end but
    TRIES."""
    rng = random.Random(f"{seed} {number} {model_type}")
    bases = [base for base in _bases() if _type_of(base) == model_type]
    for _ in range(TRIES):
        base = rng.choice(bases)
        # Encoders have the sizes of the text model that they were made for.
        fixed = {"hidden_size", "vocab_size"} if base.startswith(OF_MEDIA) else set[str]()
        config = drawn(rng, _config_of(base), frozenset(fixed))
        if _is_taken(config, _overrides_of(base)):
            yield base, config


@functools.cache
def _bases() -> tuple[str, ...]:
    """Names of the cases of families, and of those of media whose type no family's case has."""
    names = family_cases.case_names()
    known = {_type_of(name) for name in names}
    whole = [f"{OF_MEDIA}{name}" for name in media_case_names()]
    more = [base for base in whole if "text_config" in _config_of(base)]
    return (*names, *(base for base in more if _type_of(base) not in known))


def _config_of(base: str) -> dict[str, Any]:
    if base.startswith(OF_MEDIA):
        return media_config_of(base.removeprefix(OF_MEDIA))
    return family_cases.config_of(base)


def _type_of(base: str) -> str | None:
    return _config_of(base).get("model_type")


def _overrides_of(base: str) -> dict[str, str]:
    """Of whole models only the text is read: how images are prepared is said in other files."""
    return {"IMAGES": "false"} if base.startswith(OF_MEDIA) else {}


def _is_taken(config: dict[str, Any], overrides: dict[str, str]) -> bool:
    try:
        make_recipe("auto", text_config(config), family_cases.F32 | overrides).blueprint()
    except CheckpointError:
        return False
    return True


def write_candidates(folder: Path, model_type: str, seed: int, number: int) -> None:
    made = candidates(model_type, seed, number)
    for place, (base, config) in zip(range(CANDIDATES), made, strict=False):
        into = folder / f"{model_type}-{number}" / str(place)
        into.mkdir(parents=True)
        (into / "config.json").write_text(json.dumps(config))
        (into / "base").write_text(base)
        (into / "overrides.json").write_text(json.dumps(_overrides_of(base)))


def fault_of(folder: Path) -> str | None:
    """Return how ours differs from the reference, or None. Raises CheckpointError for tensors that
    a family refuses."""
    name = str(folder)
    golden = family_cases.golden_of(name)
    if family_cases.is_encoder(name):
        found = {"whole": _hidden(family_cases.load_encoder(name), golden["prompt"])}
        wanted = golden["hidden"]
    else:
        model, recipe = family_cases.load(name)
        steps = InSteps(model, recipe, len(golden["prompt"]), xla.KERNEL)
        whole = (len(golden["prompt"]),)
        ways = {"whole": whole, "in chunks and token by token": CHUNKS}
        found = {way: steps.logits(golden["prompt"], chunks) for way, chunks in ways.items()}
        wanted = golden["logits"]
    for way, logits in found.items():
        worst = float(np.abs(logits - wanted).max() / np.abs(wanted).max())
        if not worst <= 1e-4:
            return f"{way}: differs by {worst:.2g} of the largest number"
    return None


def _hidden(module: Any, prompt: np.ndarray) -> np.ndarray:
    tokens, lengths = jnp.asarray(prompt[None], jnp.int32), jnp.asarray([len(prompt)])
    return np.asarray(jax.jit(lambda module: module(tokens, lengths))(module))[0]


def changes_of(folder: Path) -> str:
    """Return what a draw changed of the case that it was drawn from."""
    base = (folder / "base").read_text()
    before, after = _config_of(base), json.loads((folder / "config.json").read_text())
    if "text_config" in after:
        before, after = before["text_config"], after["text_config"]
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    return f"{base} with {json.dumps(changed)}"


def outcome_of(draw: Path) -> str:
    """Return `equal`, `refused: ...`, `not drawn: ...` or `FAULT: ...`."""
    made = [each for each in sorted(draw.iterdir()) if (each / "golden.npz").exists()]
    if not made:
        why = [each.read_text() for each in sorted(draw.glob("*/rejected"))]
        return f"not drawn: transformers runs none of {len(why)}: {why[-1:]!s:.200}"
    try:
        fault = fault_of(made[0])
    except CheckpointError as refused:
        return f"refused: {refused}; {changes_of(made[0])}"
    except Exception:
        fault = traceback.format_exc(limit=-3)
    return f"FAULT: {fault}; {changes_of(made[0])}" if fault else "equal"


def main() -> None:
    os.environ.setdefault("XLA_FLAGS", QUICK_COMPILER)
    chosen = _arguments()
    types = sorted({*filter(None, map(_type_of, _bases()))})
    types = chosen.types or types
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch)
        for model_type in types:
            for number in range(chosen.draws):
                write_candidates(folder, model_type, chosen.seed, number)
        command = [chosen.reference, "-m", "tests.tools.golden.families.drawn", str(folder)]
        subprocess.run(command, check=True)
        draws = [f"{model_type}-{number}" for model_type in types for number in range(chosen.draws)]
        for place, name in enumerate(draws, 1):
            missing = "not drawn: our family takes none"
            outcomes[name] = outcome_of(folder / name) if (folder / name).exists() else missing
            sys.stdout.write(f"[{place}/{len(draws)}] {name}: {outcomes[name]}\n")
            sys.stdout.flush()
            jax.clear_caches()
    faults = [name for name, told in outcomes.items() if told.startswith("FAULT")]
    equal = [name for name, told in outcomes.items() if told == "equal"]
    sys.stdout.write(f"{len(equal)} of {len(draws)} draws equal, {len(faults)} at fault\n")
    for name in faults:
        again = f"--seed {chosen.seed} {name.rpartition('-')[0]}"
        sys.stdout.write(f"{name}: {outcomes[name]}\n  again: {again}\n")
    sys.exit(bool(faults))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.tools.random_configs", description=__doc__)
    today = int(f"{date.today():%Y%m%d}")
    parser.add_argument("types", nargs="*", metavar="MODEL_TYPE", help="none: all")
    parser.add_argument("--seed", type=int, default=today, help="without it the day")
    parser.add_argument("--draws", type=int, default=2, help="of each model_type")
    parser.add_argument("--reference", required=True, help="a Python with torch and transformers")
    parser.add_argument("--keep", type=Path, help="keep what is drawn in this folder")
    return parser.parse_args()


if __name__ == "__main__":
    main()
