"""A model of quantised weights computes what one of the numbers that they stand for computes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.weights import read_weights
from model_server.models.registry import make_recipe
from model_server.models.weights.quantized import as_bytes
from model_server.plan.checkpoint.inspect import inspect
from sax.errors import InvalidRequest
from tests.model_server.checkpoints.huggingface.prequantized.tiny_quantised import (
    FORMS,
    write_quantised,
)
from tests.model_server.tiny import logits_of

PROMPT = np.array([1, 17, 42, 8, 99, 3, 120])
KEPT = {  # kind and columns of a block of what "stored" holds
    "gptq": ("int4", 32),
    "gptq_3_bits": ("int4", 32),
    "awq": ("int4", 32),
    "w4a16": ("int4", 32),
    "w8a8": ("int8", None),
    "nvfp4": ("int8", 16),
    "mxfp4": ("float4_e2m1fn", 32),
    "fp8": ("float8_e4m3fn", 32),
    "modelopt": ("int8", 16),
}
EACH = [  # by day one whose columns are sorted, and one of float4
    pytest.param(form, marks=[] if form in ("gptq_sorted", "nvfp4") else pytest.mark.nightly)
    for form in FORMS
]
STORED = [  # by day one in blocks, and one whose products are in int8
    pytest.param(form, marks=[] if form in ("nvfp4", "w8a8") else pytest.mark.nightly)
    for form in FORMS
    if form in KEPT
]


def run(folder: Path, **overrides: str) -> tuple[np.ndarray, set[Any]]:
    """Logits, and how its matrices are held."""
    with closing(open_checkpoint(str(folder))) as checkpoint:
        recipe: Any = make_recipe("auto", checkpoint.config, {"DTYPE": '"float32"', **overrides})
        module = recipe.blueprint(checkpoint=checkpoint)
        read = read_weights(module.declarations, checkpoint, lambda _: None)
    leaves = [as_bytes(leaf) for leaf in read]
    held = {each.packing for each in module.declarations if len(each.shape) == 2}

    def logits(leaves: list[jax.Array]) -> jax.Array:
        return logits_of(module.assemble(leaves), recipe, PROMPT)

    found = np.asarray(jax.jit(logits)(leaves))
    return found, {packing and (packing.kind, packing.block) for packing in held}


@pytest.mark.parametrize("form", EACH)
def test_logits_are_those_of_the_numbers(form: str, tmp_path: Path) -> None:
    quantised, plain = write_quantised(form, tmp_path)
    wanted, _ = run(plain)
    found, held = run(quantised)
    assert held == {None}
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max(), rtol=1e-5)


@pytest.mark.parametrize("form", STORED)
def test_logits_are_those_of_the_numbers_if_weights_are_held_as_stored(
    form: str, tmp_path: Path
) -> None:
    quantised, plain = write_quantised(form, tmp_path)
    wanted, _ = run(plain)
    found, held = run(quantised, QUANTIZE='"stored"')
    assert held == {None, KEPT[form]}
    # Whole rows of int8 are multiplied by activations in int8.
    loss = 1e-3 if form == "w8a8" else 1e-5
    np.testing.assert_allclose(found, wanted, atol=loss * np.abs(wanted).max(), rtol=loss)


def test_sorted_columns_cannot_be_held_as_stored(tmp_path: Path) -> None:
    quantised, _ = write_quantised("gptq_sorted", tmp_path)
    with pytest.raises(InvalidRequest, match=r'"stored".*has none that can be kept'):
        run(quantised, QUANTIZE='"stored"')


@pytest.mark.parametrize("form", EACH)
def test_a_quantised_folder_passes_inspection(form: str, tmp_path: Path) -> None:
    report = inspect(str(write_quantised(form, tmp_path)[0]))
    assert report.problems == []
    assert ("stored" in report.memory) == (form in KEPT)
