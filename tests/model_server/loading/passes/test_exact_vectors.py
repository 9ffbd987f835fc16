"""A text's vector has the same bits alone and beside any others, by every kind of encoder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_server.kernels.cpu import native
from model_server.loading.loader import ModelLoader
from model_server.loading.passes.loaded_passes import LoadedTokens, TokenText
from tests.each_case import Failures
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.loading.passes.test_embed_loading import classifier
from tests.model_server.sentence_folders import sentence_folder
from tests.model_server.tiny_bert import tiny_bert

_CONTEXT, _VOCAB = 48, 50
# Folder and overrides; by night those that are like another by day.
_CASES: dict[str, tuple[str, dict[str, str]]] = {
    "bert": ("embeds", {"POOLING": '"mean"'}),
    "modernbert": ("classifiers", {}),
    "qwen3": ("classifiers", {"DTYPE": '"bfloat16"'}),
    "bert_tags": ("tokens", {}),
    "colbert": ("tokens", {}),
}
_ALSO: dict[str, tuple[str, dict[str, str]]] = {
    "bert_labels": ("classifiers", {"DTYPE": '"bfloat16"'}),
    "llama": ("classifiers", {}),
    "modernbert_first": ("classifiers", {"DTYPE": '"bfloat16"'}),
    "pylate_modernbert": ("tokens", {}),
    "pylate_qwen3": ("tokens", {}),
    "roberta": ("classifiers", {}),
    "xlm_roberta_tags": ("tokens", {}),
}


def _loaded(loader: ModelLoader, folder: Path, case: str) -> Any:
    kind, overrides = (_CASES | _ALSO)[case]
    if kind == "embeds":
        tiny_bert(folder)
    elif kind == "tokens":
        folder = sentence_folder(folder, case, kind)
    else:
        classifier(folder, case)
    given = {"DTYPE": '"float32"', "MAX_CONTEXT": str(_CONTEXT), "BATCH_SIZE": "7"} | overrides
    if "qwen" in case or case == "llama":
        del given["BATCH_SIZE"]
    return loader(spec_of(folder, **given), quiet)


def _text(rng: random.Random, loaded: Any) -> Any:
    ids = [rng.randrange(5, min(_VOCAB, loaded.vocab)) for _ in range(rng.randint(1, _CONTEXT))]
    if isinstance(loaded, LoadedTokens):
        return TokenText(ids, len(ids) if loaded.labels else rng.randint(1, len(ids)))
    return ids


@pytest.mark.skipif(not native.available(), reason="XLA's sums depend on the batch")
@pytest.mark.parametrize(
    "case", [*_CASES, *(pytest.param(case, marks=pytest.mark.nightly) for case in _ALSO)]
)
def test_no_bit_of_a_vector_depends_on_the_texts_beside_it_or_on_padding(
    loader: ModelLoader, tmp_path: Path, case: str
) -> None:
    loaded, rng, failures = _loaded(loader, tmp_path, case), random.Random(7), Failures()
    texts = [_text(rng, loaded) for _ in range(12)]
    alone = [np.asarray(loaded.runner.run([text])[0]) for text in texts]
    for size in (2, 5, 7, 12):
        order = rng.sample(range(len(texts)), size)
        made = loaded.runner.run([texts[index] for index in order])
        for index, vector in zip(order, made, strict=True):
            with failures.of(size, index):
                np.testing.assert_array_equal(vector, alone[index])
    assert not failures, str(failures)
    assert loader.compiles_while_serving() == 0
