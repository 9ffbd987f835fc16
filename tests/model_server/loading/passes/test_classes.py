"""Heads of classifiers against transformers, and what makes scores of their logits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.loading.loader import ModelLoader
from model_server.loading.passes.embed_loading import activation_of
from model_server.loading.passes.loaded_passes import LoadedEmbedder
from model_server.models.labels import labels_of
from sax.errors import CheckpointError
from tests.golden.random_tensor import random_tensor
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.tiny_bert import save_tokenizer

CASES = Path(__file__).parents[3] / "golden" / "classifiers"


def classifier(folder: Path, case: str, **config: Any) -> Path:
    """A folder on disk with the case's random weights, and a tokenizer of letters."""
    given = json.loads((CASES / case / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(given))
    shapes = json.loads((CASES / case / "tensors.json").read_text())
    tensors = {name: random_tensor(name, tuple(shape)) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    save_tokenizer(folder)
    return folder


def load(loader: ModelLoader, folder: Path, **overrides: str) -> LoadedEmbedder:
    given = {"DTYPE": '"float32"', "MAX_CONTEXT": "32"} | overrides
    loaded = loader(spec_of(folder, **given), quiet)
    assert isinstance(loaded, LoadedEmbedder)
    return loaded


# Like another that runs by day, but for labels or a model type's name.
ALSO = {"bert_labels", "modernbert_first", "qwen2", "xlm_roberta"}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.nightly] * (case in ALSO))
        for case in sorted(each.name for each in CASES.iterdir())
    ],
)
def test_the_logits_are_the_reference_implementations_in_any_batch(
    loader: ModelLoader, tmp_path: Path, case: str
) -> None:
    """A BERT's second segment begins after the separator, as in the golden case."""
    golden = np.load(CASES / case / "golden.npz")
    loaded = load(loader, classifier(tmp_path, case), CLASSIFY_ACTIVATION='"none"')
    ids = golden["prompt"].tolist()
    for batch in ([ids], [[5, 6], ids, [7]]):
        scores = loaded.runner.run(batch)
        np.testing.assert_allclose(scores[batch.index(ids)], golden["logits"], atol=2e-4)
    assert len(loaded.labels) == len(golden["logits"])
    assert loader.compiles_while_serving() == 0


def test_scores_are_as_the_checkpoint_makes_them(loader: ModelLoader, tmp_path: Path) -> None:
    golden = np.load(CASES / "llama" / "golden.npz")
    loaded = load(loader, classifier(tmp_path, "llama"))
    grown = np.exp(golden["logits"] - golden["logits"].max())
    scores = loaded.runner.run([golden["prompt"].tolist()])[0]
    np.testing.assert_allclose(scores, grown / grown.sum(), atol=1e-4)
    assert loaded.labels == ("no", "yes")
    assert loaded.methods == ("lm.classify",)


def test_scores_are_as_sentence_transformers_makes_them(
    loader: ModelLoader, tmp_path: Path
) -> None:
    """It keeps that beside its list of modules."""
    folder = classifier(tmp_path, "bert")
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": kind}]))
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(identity))
    golden = np.load(CASES / "bert" / "golden.npz")
    scores = load(loader, folder).runner.run([golden["prompt"].tolist()])[0]
    np.testing.assert_allclose(scores, golden["logits"], atol=2e-4)


def test_a_pair_is_read_with_a_separator_between(loader: ModelLoader, tmp_path: Path) -> None:
    loaded = load(loader, classifier(tmp_path, "bert"))
    assert loaded.tokenizer.encode_pair("ab", "c") == [2, 5, 32, 3, 7, 3]
    assert loaded.methods == ("lm.classify", "lm.rerank")


def test_the_activation_follows_the_config() -> None:
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({}, 1, "sigmoid"),
        ({}, 3, "softmax"),
        ({"problem_type": "regression"}, 1, "none"),
        ({"problem_type": "multi_label_classification"}, 3, "sigmoid"),
        ({"problem_type": "single_label_classification"}, 1, "sigmoid"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
            1,
            "none",
        ),
        (
            {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"},
            1,
            "sigmoid",
        ),
    ]
    wrong = [each for each in cases if activation_of(each[0], each[1]) != each[2]]
    assert wrong == []


def test_an_unknown_activation_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="'torch.mystery'"):
        activation_of({"sentence_transformers": {"activation_fn": "torch.mystery"}}, 1)
    with pytest.raises(CheckpointError, match="problem_type = 'odd'"):
        activation_of({"problem_type": "odd"}, 1)


def test_labels_are_in_the_order_of_their_numbers() -> None:
    assert labels_of({"id2label": {"1": "b", "0": "a"}}) == ("a", "b")
    assert labels_of({"id2label": {str(n): f"l{n}" for n in range(12)}})[10] == "l10"
    assert labels_of({}) == ("LABEL_0", "LABEL_1")
    assert labels_of({"num_labels": 1}) == ("LABEL_0",)
    for wrong in ({"1": "b"}, {"0": 5}, [], {}):
        with pytest.raises(CheckpointError, match="id2label"):
            labels_of({"id2label": wrong})
