"""Serves a causal language model whose model_type has no family here, by transformers' own code.

The code is traced in a process of its own, which alone imports torch (`tracing`), and becomes a
module like those of the families (`traced_model`). docs/how_to/any_model.md says which models can
be served, and what it costs.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_server.kernels.pages import CacheShape, HeadShape
from model_server.models.recipe import SERVING_DEFAULTS, ModelClass, Recipe, serving
from model_server.models.tasks import GENERATE
from model_server.models.transformers.graph import AttentionCall, TracedGraphs
from sax.distribution import how_to_install
from sax.errors import CheckpointError, InvalidRequest
from sax.format import quoted

PATH = "transformers"
EXTRA = "torch"
# Model types that were compared with transformers, which `auto` serves so.
COMPARED = (
    *("apertus1p5_text", "aria_text", "biogpt", "bitnet", "codegen", "diffllama", "exaone"),
    *("flex_olmo", "gpt_bigcode", "internlm3", "jais2", "kolibri1", "modernbert-decoder"),
    *("nanochat", "nemotron", "olmo", "opt", "persimmon", "stablelm", "vaultgemma"),
)
_SECONDS = 900  # for one trace: a large model takes a minute on an idle machine
# Keys of config.json with the longest context, in the order in which they are believed.
_CONTEXTS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "max_sequence_length",
)


def is_installed() -> bool:
    """Return True if torch and transformers are installed; imports neither."""
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))


def remedy(model_type: object) -> str:
    """Return what would have transformers' own code serve a model, as a part of a sentence."""
    if not is_installed():
        return f"{how_to_install(EXTRA)}, to serve it by transformers' own code"
    return (
        f"publish {quoted(model_type)} with the model path {PATH} to serve it by transformers' own "
        "code, and score a known text first: that code, as converted here, was not compared for it"
    )


def configure(config: Mapping[str, Any] | None, values: Mapping[str, Any]) -> Recipe:
    """Trace the model of a config.json. Raises CheckpointError, InvalidRequest."""
    # Not with the registry, which every server imports.
    from model_server.models.transformers.traced_model import TracedModel

    assert config is not None, "the registry says that it needs a checkpoint"
    _check_serving(values, serving(values, sys.maxsize))
    traced = _traced(json.dumps(dict(config), sort_keys=True, default=str))
    served = serving(values, _longest(config, values))
    served["mesh_shape"] = (1, 1, 1)
    first = traced.attention[0]
    windows = tuple(call.window or call.chunk for call in traced.attention)
    return Recipe(
        build=functools.partial(TracedModel, traced),
        cache=functools.partial(_cache, traced.attention, first),
        embed=traced.embed,
        vocab=traced.vocab,
        windows=windows if any(windows) else (),
        unused=traced.unread,
        note=f"Served by transformers' {traced.class_name}, traced: it has no family of its own.",
        **served,
    )


TRANSFORMERS = ModelClass(PATH, True, SERVING_DEFAULTS, configure)


def _longest(config: Mapping[str, Any], values: Mapping[str, Any]) -> int:
    """Return the tokens of the longest context."""
    found = (config.get(key) for key in _CONTEXTS)
    longest = next((each for each in found if type(each) is int and each > 0), None)
    if longest is None and type(values.get("MAX_CONTEXT")) is int:
        return values["MAX_CONTEXT"]
    if longest is None:
        raise InvalidRequest(
            f"config.json does not say the longest context ({', '.join(_CONTEXTS)}): give "
            "MAX_CONTEXT a number of tokens",
            param="overrides.MAX_CONTEXT",
        )
    return longest


def _check_serving(values: Mapping[str, Any], served: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for what a traced model cannot have."""
    devices = served["mesh_shape"] or (1,)
    for key, asked in (
        ("ICI_MESH_SHAPE", any(size > 1 for size in devices)),
        ("NUM_STAGES", served["stages"] > 1),
        ("TASKS", served["tasks"].names not in (None, (GENERATE,))),
    ):
        if asked:
            raise InvalidRequest(
                f"{key} is {values[key]!r}, but a model that is served by transformers' code "
                "generates text on one device: leave it out",
                param=f"overrides.{key}",
            )


@functools.lru_cache(maxsize=4)  # a load asks several times
def _traced(config: str) -> TracedGraphs:
    """Trace in a process of its own. Raises CheckpointError."""
    name = json.loads(config).get("model_type")
    if not is_installed():
        raise CheckpointError(
            f"model_type {quoted(name)} has no family here, and torch and transformers are not "
            f"installed: {remedy(name)}"
        )
    with tempfile.TemporaryDirectory(prefix="sax-trace-") as folder:
        made = _run(config, Path(folder) / "traced.pickle")
    if isinstance(made, str):
        raise CheckpointError(
            f"model_type {quoted(name)} has no family here and cannot be served by transformers' "
            f"code: {made}"
        )
    from model_server.models.transformers.traced_model import unknown_operations

    if missing := unknown_operations(made):
        raise CheckpointError(
            f"model_type {quoted(name)} has no family here, and transformers' code for it computes "
            f"{', '.join(missing)}, which sax has no operation for"
        )
    return made


def _run(config: str, result: Path) -> TracedGraphs | str:
    command = (sys.executable, "-m", f"{__package__}.tracing", str(result))
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "CUDA_VISIBLE_DEVICES": ""}
    try:
        ran = subprocess.run(
            command,
            input=config,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={**os.environ, **quiet},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"tracing it took more than {_SECONDS} s"
    if ran.returncode:
        last = ran.stderr.strip().splitlines()[-1:] or [""]
        return f"the process that traces it ended with {ran.returncode}: {last[0][:300]}"
    return pickle.loads(result.read_bytes())


def _cache(calls: tuple[AttentionCall, ...], first: AttentionCall, shards: int) -> CacheShape:
    """Cache shape of the attention calls; every device has all heads."""
    shapes = [HeadShape(call.kv_heads, call.key_dim, call.value_dim) for call in calls]
    others = [None if shape == shapes[0] else shape for shape in shapes]
    return CacheShape(
        layers=len(calls),
        kv_heads=first.kv_heads,
        key_dim=first.key_dim,
        value_dim=first.value_dim,
        others=tuple(others) if any(others) else (),
    )
