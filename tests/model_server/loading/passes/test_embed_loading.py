"""The real loader on a tiny BERT (the real MiniLM: see test_minilm.py), and heads of classifiers
against transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from model_server.checkpoints.huggingface.sentence_transformers import SentenceSettings
from model_server.config import ModelServerConfig
from model_server.loading.loader import ModelLoader
from model_server.loading.passes.embed_programs import activation_of
from model_server.loading.passes.loaded_passes import LoadedEmbedder
from model_server.loading.passes.text_settings import context_of, encoding_as
from model_server.models.labels import labels_of
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.registry import make_recipe
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError, InvalidRequest, MemoryPlanError
from tests.golden.random_tensor import random_tensor
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.models.family_cases import golden_of
from tests.model_server.models.refusals import refused_otherwise
from tests.model_server.tiny_bert import save_tokenizer, tiny_bert

SMALL = {"MAX_CONTEXT": "32", "BATCH_SIZE": "4"}


def load(loader: ModelLoader, folder: Path | str, **overrides: str) -> LoadedEmbedder:
    loaded = loader(spec_of(folder, **SMALL | overrides), quiet)
    assert isinstance(loaded, LoadedEmbedder)
    return loaded


def test_a_vector_is_the_reference_implementations_in_any_batch(
    loader: ModelLoader, tmp_path: Path
) -> None:
    golden = golden_of("bert")
    loaded = load(loader, tiny_bert(tmp_path))
    ids = golden["prompt"].tolist()
    for batch in ([ids], [[5, 6], ids, [7]], [ids] * 7):
        vectors = loaded.runner.run(batch)
        np.testing.assert_allclose(vectors[batch.index(ids)], golden["pooled"], atol=1e-5)
    assert loaded.dimensions == len(golden["pooled"])
    assert loader.compiles_while_serving() == 0


def test_a_text_is_read_with_its_start_and_its_end(loader: ModelLoader, tmp_path: Path) -> None:
    loaded = load(loader, tiny_bert(tmp_path))
    assert loaded.tokenizer.encode("ab c") == [2, 5, 32, 7, 3]
    # a control token written in a text stays text
    assert loaded.tokenizer.encode("[SEP]")[1:-1].count(3) == 0


def test_pooling_and_normalising_follow_the_folder(loader: ModelLoader, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path)
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    golden = golden_of("bert")
    vector = load(loader, folder).runner.run([golden["prompt"].tolist()])[0]
    np.testing.assert_allclose(vector, golden["hidden"][0], rtol=1e-4, atol=1e-4)


def test_pooling_follows_a_gguf_files_own_word(loader: ModelLoader, tmp_path: Path) -> None:
    golden = golden_of("bert")
    loaded = load(loader, tiny_bert(tmp_path, pooling="cls"), BATCH_SIZE="1")
    first = golden["hidden"][0]
    vector = loaded.runner.run([golden["prompt"].tolist()])[0]
    np.testing.assert_allclose(vector, first / np.linalg.norm(first), atol=1e-5)


def test_memory_counts_while_loaded_and_is_given_back(loader: ModelLoader, tmp_path: Path) -> None:
    folder = tiny_bert(tmp_path)
    small = {"BATCH_SIZE": "1"}
    needed = load(loader, folder, **small).memory
    limit = ModelServerConfig(memory_limit_bytes=needed + needed // 2)
    tight = ModelLoader(limit, loader.watch)
    first = load(tight, folder, **small)
    with pytest.raises(MemoryPlanError, match="in use by other models"):
        load(tight, folder, **small)
    first.runner.close()
    assert load(tight, folder, **small).memory == needed


def test_a_checkpoint_that_does_not_fit_says_what_is_wrong(
    loader: ModelLoader, tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"num_hidden_layers": 4}, r"lacks encoder\.layer\.3"),
        ({"intermediate_size": 65}, "the configuration says"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = True"),
        ({"num_attention_heads": 5}, "does not divide into 5 heads"),
        ({"hidden_act": "mystery"}, "activation 'mystery'"),
        ({"vocab_size": 20}, "rows of embedding"),
    ]
    wrong = refused_otherwise(
        lambda config: load(loader, tiny_bert(tmp_path, **config)), cases, CheckpointError
    )
    assert wrong == {}


def recipe(**overrides: str) -> EmbedRecipe:
    config = json.loads((Path(__file__).parents[3] / _CONFIG).read_text())
    made = make_recipe("bert", config, overrides)
    assert isinstance(made, EmbedRecipe)
    return made


_CONFIG = "golden/families/bert/config.json"  # 64 positions


def test_the_context_is_as_published_else_as_its_makers_say() -> None:
    cases: list[tuple[dict[str, str], SentenceSettings, int | None, int]] = [
        ({}, SentenceSettings(), None, 64),
        ({}, SentenceSettings(max_length=16), None, 16),
        ({}, SentenceSettings(max_length=512), None, 64),
        ({"MAX_CONTEXT": "48"}, SentenceSettings(max_length=16), None, 48),
        ({"MAX_CONTEXT": "48"}, SentenceSettings(), 20, 20),
    ]
    for published, settings, flag, expected in cases:
        config = ModelServerConfig(max_context=flag)
        assert context_of(recipe(**published), settings, config) == expected


def test_a_context_without_room_for_text_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a context of 2 tokens holds no text"):
        context_of(recipe(MAX_CONTEXT="2"), SentenceSettings(), ModelServerConfig())


def test_prefix_and_lower_case_come_before_the_tokenizer(tmp_path: Path) -> None:
    serialized = (tiny_bert(tmp_path) / "tokenizer.json").read_text()
    settings = SentenceSettings(lower_case=True, prefix="Q ")
    tokenizer = encoding_as(settings, HfTokenizer(serialized))
    assert tokenizer.encode("AB") == tokenizer.encode("ab") == [2, 21, 5, 32, 3]


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


def load_classifier(loader: ModelLoader, folder: Path, **overrides: str) -> LoadedEmbedder:
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
    loaded = load_classifier(loader, classifier(tmp_path, case), CLASSIFY_ACTIVATION='"none"')
    ids = golden["prompt"].tolist()
    for batch in ([ids], [[5, 6], ids, [7]]):
        scores = loaded.runner.run(batch)
        np.testing.assert_allclose(scores[batch.index(ids)], golden["logits"], atol=2e-4)
    assert len(loaded.labels) == len(golden["logits"])
    assert loader.compiles_while_serving() == 0


def test_scores_are_as_the_checkpoint_makes_them(loader: ModelLoader, tmp_path: Path) -> None:
    golden = np.load(CASES / "llama" / "golden.npz")
    loaded = load_classifier(loader, classifier(tmp_path, "llama"))
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
    scores = load_classifier(loader, folder).runner.run([golden["prompt"].tolist()])[0]
    np.testing.assert_allclose(scores, golden["logits"], atol=2e-4)


def test_a_pair_is_read_with_a_separator_between(loader: ModelLoader, tmp_path: Path) -> None:
    loaded = load_classifier(loader, classifier(tmp_path, "bert"))
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


def test_overrides_of_another_task_are_refused_by_name(loader: ModelLoader, tmp_path: Path) -> None:
    """They would change nothing."""
    with pytest.raises(InvalidRequest, match="CLASSIFY_ACTIVATION is for a model that classifies"):
        load(loader, tiny_bert(tmp_path), CLASSIFY_ACTIVATION='"none"')
    folder = classifier(tmp_path, "bert")
    for key, value in (("POOLING", '"cls"'), ("NORMALIZE", "false"), ("MATRYOSHKA", "[8]")):
        with pytest.raises(InvalidRequest, match=f"{key} is for a model that embeds"):
            load_classifier(loader, folder, **{key: value})


def test_labels_are_in_the_order_of_their_numbers() -> None:
    assert labels_of({"id2label": {"1": "b", "0": "a"}}) == ("a", "b")
    assert labels_of({"id2label": {str(n): f"l{n}" for n in range(12)}})[10] == "l10"
    assert labels_of({}) == ("LABEL_0", "LABEL_1")
    assert labels_of({"num_labels": 1}) == ("LABEL_0",)
    for wrong in ({"1": "b"}, {"0": 5}, [], {}):
        with pytest.raises(CheckpointError, match="id2label"):
            labels_of({"id2label": wrong})
