"""Adapters written into their bases' weights, against what PEFT makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.huggingface.merged_adapter import MergedAdapter
from model_server.checkpoints.huggingface.peft import CONFIG, WEIGHTS, open_adapter
from model_server.checkpoints.opening import open_checkpoint
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError
from tests.each_case import Failures
from tests.model_server.checkpoints.adapter_folder import merged, write_adapter
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.tools.golden.adapters import FAMILIES, numbers_of, told
from tests.tools.golden.converted import tensors_of

GOLDEN = FAMILIES.parent / "adapters"


def folders(case: dict[str, Any], place: Path) -> tuple[Path, Path]:
    """Write the base and the adapter of a golden case."""
    base, adapter = place / case["base"], place / "adapter"
    for folder in (base, adapter):
        folder.mkdir(parents=True)
    (base / "config.json").write_text((FAMILIES / case["base"] / "config.json").read_text())
    save_file(tensors_of(case["base"]), base / "model.safetensors", {"format": "pt"})
    (adapter / CONFIG).write_text(json.dumps(case["config"]))
    save_file(numbers_of(case["tensors"], tensors_of(case["base"])), adapter / WEIGHTS)
    return base, adapter


@contextmanager
def opened(base: Path, adapter: Path) -> Iterator[MergedAdapter]:
    with (
        closing(open_checkpoint(str(base))) as checkpoint,
        closing(open_adapter(str(adapter), merging=True)) as changes,
    ):
        yield MergedAdapter(checkpoint, changes)


def compare(case: dict[str, Any], place: Path) -> None:
    base, adapter = folders(case, place)
    before = tensors_of(case["base"])
    with opened(base, adapter) as made:
        names, wanted = made.names(), dict(case["merged"])
        if "lm_head.weight" not in before and "lm_head.weight" not in names:
            wanted.pop("lm_head.weight", None)  # tied as before, to what is compared
        for name in names:
            numbers = made.read(name)
            stored = name if name in wanted else f"transformer.{name}"
            if stored not in wanted:
                table = "model.embed_tokens.weight"
                np.testing.assert_array_equal(numbers, before.get(name, before.get(table)))
                continue
            shape, products = wanted.pop(stored)
            assert list(made.shape(name)) == shape
            np.testing.assert_allclose(told(numbers)[1], products, rtol=0, atol=3e-5)
        assert not wanted, f"unchanged: {sorted(wanted)}"


def test_each_kind_of_adapter_changes_what_peft_changes(tmp_path: Path) -> None:
    failures = Failures()
    cases = sorted(GOLDEN.glob("*.json"))
    assert len(cases) >= 10
    for path in cases:
        with failures.of(path.stem):
            compare(json.loads(path.read_text()), tmp_path / path.stem)
    assert not failures, str(failures)


def test_a_converted_folder_has_the_adapter_in_its_weights(tmp_path: Path) -> None:
    base = write_tiny(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", base)
    convert(str(base), str(tmp_path / "made"), adapter=str(adapter))
    wanted = load_file(merged(tmp_path / "wanted", base, adapter) / "model.safetensors")
    made = load_file(tmp_path / "made" / "model.safetensors")
    assert made.keys() == wanted.keys()
    for name, numbers in wanted.items():
        np.testing.assert_allclose(made[name], numbers, rtol=0, atol=1e-5, err_msg=name)


def test_what_does_not_fit_the_base_is_refused(tmp_path: Path) -> None:
    base = write_tiny(tmp_path / "base")
    table = "base_model.model.model.embed_tokens"
    experts = "base_model.model.model.layers.0.mlp.experts"
    rows: dict[str, Any] = {"trainable_token_indices": [1, 900]}
    failures = Failures()
    for name, tensors, config, said in (
        ("absent", {"base_model.model.model.other.weight": (3, 3)}, {}, "base has no model.other"),
        ("more", {f"{table}.weight": (270, 12)}, {}, "embed_tokens.weight .270, 12.*with more tok"),
        ("tokens", {f"{table}.token_adapter.trainable_tokens_delta": (2, 12)}, rows, "2 tokens of"),
        (
            "experts",
            {f"{experts}.lora_A.weight": (4, 12), f"{experts}.lora_B.weight": (20, 4)},
            {},
            "experts.* stores none of this name",
        ),
    ):
        with failures.of(name):
            folder = write_adapter(tmp_path / name, base, targets=(), **config)
            save_file(
                {each: np.ones(shape, "f") for each, shape in tensors.items()}, folder / WEIGHTS
            )
            with pytest.raises(CheckpointError, match=said), opened(base, folder):
                pass
    assert not failures, str(failures)
