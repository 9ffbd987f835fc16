"""Model paths and what they stand for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from model_server.kernels.cpu import native
from model_server.models import families as family_modules
from model_server.models import registry
from model_server.models.custom import CustomModel, CustomProgram
from model_server.models.families import llama
from model_server.models.layers.embedder import EmbedRecipe
from model_server.models.recipe import SERVING_DEFAULTS, ModelClass, Recipe
from model_server.models.registry import families, find, make_recipe, model_paths, register
from model_server.models.weights.sharding import ONE_DEVICE, Layout, layout_of
from sax.errors import CheckpointError, InvalidName, InvalidRequest, ModelPathNotFound
from sax.names import check_model_path

TEST_2B = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 97,
    "max_position_embeddings": 128,
}


def test_every_registered_path_is_well_formed_and_found() -> None:
    for path in model_paths():
        assert find(check_model_path(path)).path == path


def test_saxml_paths_work_without_their_root() -> None:
    assert find(TEST_2B.removeprefix("saxml.server.")).path == TEST_2B


def test_an_unknown_path_names_the_nearest() -> None:
    with pytest.raises(ModelPathNotFound, match=TEST_2B):
        find("lm_cloud.LmCloudSpmd2BTets")


def test_the_tutorials_model_has_175_billion_parameters() -> None:
    path = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test"
    recipe = make_recipe(path, None, {"QUANTIZE": "null"})
    assert isinstance(recipe, Recipe)
    parameters = recipe.blueprint().bytes / 2
    assert 174e9 < parameters < 176e9


def test_a_model_of_sizes_unknown_needs_a_checkpoint() -> None:
    with pytest.raises(InvalidRequest, match="takes its sizes from a checkpoint"):
        make_recipe("llama", None, {})


def test_random_weight_models_refuse_a_checkpoint() -> None:
    with pytest.raises(CheckpointError, match="are Pax's, or"):
        make_recipe(TEST_2B, LLAMA, {})


def test_auto_reads_the_family_from_the_checkpoint() -> None:
    assert make_recipe("auto", LLAMA, {}).cache(1).layers == 2
    with pytest.raises(CheckpointError, match="model_type 'mamba' is not supported"):
        make_recipe("auto", LLAMA | {"model_type": "mamba"}, {})


def test_another_family_than_the_checkpoints_is_refused_by_both_names() -> None:
    """A Mistral read as a Llama would load, and ignore its window."""
    with pytest.raises(CheckpointError, match="is a mistral checkpoint.* not a llama one"):
        make_recipe("llama", LLAMA | {"model_type": "mistral"}, {})
    with pytest.raises(CheckpointError, match="is a bert checkpoint.* not a llama one"):
        make_recipe("llama", LLAMA | {"model_type": "bert"}, {})


def test_a_named_family_reads_a_checkpoint_whose_type_nobody_knows() -> None:
    assert make_recipe("llama", LLAMA | {"model_type": "yi"}, {}).cache(1).layers == 2


@pytest.mark.parametrize("kind", ["yi", None])
def test_a_family_that_nothing_tells_from_llama_reads_only_its_own_types(kind: str | None) -> None:
    """A Llama read as a SmolLM3 would load, and every fourth layer would lose its positions."""
    assert make_recipe("smollm3", LLAMA | {"model_type": "smollm3"}, {}).cache(1).layers == 2
    with pytest.raises(CheckpointError, match="the smollm3 family reads only smollm3"):
        make_recipe("smollm3", LLAMA | {"model_type": kind}, {})


def test_quantising_in_blocks_that_fit_nothing_is_refused_and_some_may_stay_plain() -> None:
    def declared(quantize: str) -> Any:
        recipe = make_recipe("llama", LLAMA, {"QUANTIZE": f'"{quantize}"'})
        return recipe.blueprint().declarations

    with pytest.raises(InvalidRequest, match="QUANTIZE fits no matrix"):
        declared("int8:48")
    left = [each for each in declared("int8:64") if each.left_plain]
    assert {each.shape[-1] for each in left} == {32}
    assert sum(
        each.packing is not None and each.packing.block == 64 for each in declared("int8:64")
    )
    assert not any(each.left_plain for each in declared("int8"))


def test_activations_of_one_byte_are_for_quantised_weights_of_the_native_kernels() -> None:
    def declared(layout: Layout, **overrides: str) -> Any:
        return make_recipe("llama", LLAMA, overrides).blueprint(layout).declarations

    alone, given = {"ACTIVATIONS": '"int8"'}, {"QUANTIZE": '"int8"', "ACTIVATIONS": '"int8"'}
    if native.available():
        assert declared(ONE_DEVICE, **given)
    for layout, overrides in [(layout_of((1, 1, 2)), given), (ONE_DEVICE, alone)]:
        with pytest.raises(InvalidRequest, match="leave ACTIVATIONS out"):
            declared(layout, **overrides)
    with pytest.raises(InvalidRequest, match='must be "int8" or null'):
        declared(ONE_DEVICE, ACTIVATIONS='"int4"')


def test_a_context_can_be_shortened_but_not_stretched() -> None:
    assert make_recipe("llama", LLAMA, {"MAX_CONTEXT": "64"}).max_context == 64
    with pytest.raises(InvalidRequest, match="more than the 128 tokens"):
        make_recipe("llama", LLAMA, {"MAX_CONTEXT": "256"})


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"DTYPE": '"int3"'}, "DTYPE"),
        ({"NUM_SAMPLES": "0"}, "NUM_SAMPLES=0: give a whole number"),
        ({"NUM_LAYERS": "0"}, "NUM_LAYERS=0: give a whole number"),
    ],
)
def test_values_out_of_range_are_refused(overrides: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        make_recipe(TEST_2B, None, overrides)


@pytest.fixture
def a_registry_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test registers is gone after it."""
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))


def a_custom_model(path: str = "mine.Doubler") -> CustomModel:
    def load(checkpoint: str | None, values: Mapping[str, Any]) -> CustomProgram:
        raise NotImplementedError

    return CustomModel(path=path, load=load)


@pytest.mark.usefixtures("a_registry_of_our_own")
def test_a_registered_model_is_offered_and_found() -> None:
    model = a_custom_model()
    register(model)
    assert "mine.Doubler" in model_paths()
    assert find("mine.Doubler") is model
    with pytest.raises(ModelPathNotFound, match=r"mine\.Doubler"):
        find("mine.Dubler")


@pytest.mark.usefixtures("a_registry_of_our_own")
def test_a_registered_language_model_reads_the_checkpoint_it_is_given() -> None:
    register(ModelClass("mine.Llama", True, SERVING_DEFAULTS, llama.configure))
    recipe = make_recipe("mine.Llama", LLAMA, {"MAX_CONTEXT": "64"})
    assert isinstance(recipe, Recipe)
    assert recipe.max_context == 64


@pytest.mark.usefixtures("a_registry_of_our_own")
@pytest.mark.parametrize("taken", ["llama", "bert", TEST_2B, TEST_2B.removeprefix("saxml.server.")])
def test_a_path_is_registered_once(taken: str) -> None:
    with pytest.raises(ValueError, match=r"is already registered \(as a \w+\): give the new one"):
        register(a_custom_model(taken))
    register(a_custom_model())
    with pytest.raises(ValueError, match="as a CustomModel"):
        register(a_custom_model())


def test_only_entries_with_a_well_formed_path_are_registered() -> None:
    with pytest.raises(InvalidName, match="is not a model path"):
        register(a_custom_model("1/x"))
    with pytest.raises(TypeError, match="not a function"):
        register(a_custom_model)  # pyright: ignore


def test_no_two_families_claim_a_model_type_or_a_path() -> None:
    claimed = [name for family in families() for name in family.model_types]
    assert len(claimed) == len(set(claimed))
    paths = [family.path for family in families()]
    assert len(paths) == len(set(paths))
    assert set(paths) <= set(model_paths())


def test_every_module_that_configures_a_model_is_a_family_and_none_is_hidden() -> None:
    place = Path(family_modules.__file__).parent
    modules = {path for path in place.rglob("*.py") if "\ndef configure(" in path.read_text()}
    sources = (import_module(each.configure.__module__).__file__ or "" for each in families())
    served = set(map(Path, sources))
    assert served == modules


_LITERAL = """
from model_server.models.recipe import Family

raise AssertionError("it was imported")

FAMILY = Family("quiet", ("quiet", "silent"), "Quiet", print, own_types_only=True)
"""
_COMPUTED = """
from model_server.models.recipe import Family

FAMILY = Family("_".join(("no", "literal")), ("no_literal",), "Computed", print)
"""


def test_what_is_read_is_what_the_module_declares() -> None:
    for read in families():
        own = import_module(read.configure.__module__).FAMILY
        assert type(read) is type(own)
        assert read.model_class().overridable == own.model_class().overridable
        named = [name for name in type(own).__slots__ if name != "configure"]
        assert [getattr(read, name) for name in named] == [getattr(own, name) for name in named]


def test_only_a_family_that_is_no_literal_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some_families"
    folder.mkdir()
    for name, source in (("__init__", ""), ("literal", _LITERAL), ("computed", _COMPUTED)):
        (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    computed, literal = family_modules.declared_families(import_module("some_families"))
    assert (computed.path, computed.configure) == ("no_literal", print)
    assert (literal.path, literal.model_types) == ("quiet", ("quiet", "silent"))
    with pytest.raises(AssertionError, match="it was imported"):
        literal.configure({}, {})


BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}


def test_auto_finds_embedders_too_and_checks_their_own_overrides() -> None:
    recipe = make_recipe("auto", BERT, {"BATCH_SIZE": "4"})
    assert isinstance(recipe, EmbedRecipe)
    assert (recipe.batch, recipe.embed, recipe.dtype) == (4, 32, "float32")
    with pytest.raises(InvalidRequest, match="unknown override 'TOP_K'"):
        make_recipe("auto", BERT, {"TOP_K": "4"})


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"DTYPE": '"int3"'}, "DTYPE"),
        ({"BATCH_SIZE": "0"}, "BATCH_SIZE is 0"),
        ({"BATCH_SIZE": "null"}, "BATCH_SIZE must be a number"),
        ({"MAX_CONTEXT": "65"}, "more than the 64 tokens"),
    ],
)
def test_an_embedders_values_out_of_range_are_refused(overrides: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        make_recipe("bert", BERT, overrides)


# Billions of parameters of Saxml's models, by how the names of their classes begin.
SAXML_SIZES = {
    "LmCloudSpmd2B": 2.14,
    "LmCloudSpmd175B": 174.3,
    "LLaMA7B": 6.74,
    "LLaMA13B": 13.0,
    "LLaMA33B": 32.5,
    "LLaMA65B": 65.3,
    "LLaMA70B": 69.0,
    "LLaMA3_8B": 8.03,
    "LLaMA3_70B": 70.6,
    "LLaMA31_405B": 410,
    "GemmaBase": 2.64,
    "Gemma2B": 2.51,
    "Gemma7B": 8.54,
    "GPTJ": 6.05,
    "C4SpmdGpt3": 175,
}
SAXML_KEYS = (
    "NUM_LAYERS",
    "MODEL_DIMS",
    "HIDDEN_DIMS",
    "NUM_HEADS",
    "NUM_KV_HEADS",
    "DIMS_PER_HEAD",
    "VOCAB_SIZE",
)
SAXML_PATHS = [path for path in model_paths() if path.startswith("saxml.server.pax.lm.")]


def test_all_66_language_models_of_saxml_are_registered() -> None:
    packages = Counter(path.split(".")[-2] for path in SAXML_PATHS)
    assert packages == {"lm_cloud": 46, "gemma": 16, "gptj": 3, "c4": 1}


def test_every_model_of_saxml_has_the_parameters_that_its_name_says() -> None:
    counts: dict[Any, float] = {}
    for path in SAXML_PATHS:
        name = path.rpartition(".")[2]
        wanted = next(size for start, size in SAXML_SIZES.items() if name.startswith(start))
        # Classes of one size, and nothing but their size, are put together once.
        config = tuple((key, find(path).overridable.get(key)) for key in SAXML_KEYS)
        if config not in counts:
            declared = make_recipe(path, None, {}).blueprint().declarations
            counts[config] = sum(math.prod(weight.shape) for weight in declared) / 1e9
        assert counts[config] == pytest.approx(wanted, rel=0.02), name


def test_a_path_like_no_other_gets_an_overview_in_a_line() -> None:
    with pytest.raises(
        ModelPathNotFound, match=r"auto, the \d+ families .*llama.* and 67 classes of saxml"
    ) as caught:
        find("zzz")
    assert len(caught.value.text) < 500


@pytest.mark.parametrize(
    ("near", "wanted"),
    [
        ("lm_cloud.LmCloudSpmd175B32", "lm_cloud.LmCloudSpmd175B32Test"),
        ("LLaMA3_8B", "lm_cloud.LLaMA3_8BFP16x4"),
        ("gemma.Gemma2B", "gemma.Gemma2BFP16"),
        ("gptj.GPTJ4", "gptj.GPTJ"),
    ],
)
def test_near_misses_of_saxmls_names_find_them(near: str, wanted: str) -> None:
    with pytest.raises(ModelPathNotFound, match=wanted):
        find(near)
