"""Model paths and what they stand for."""

from __future__ import annotations

import pytest

from model_server.models.registry import find, make_recipe, model_paths
from sax.errors import CheckpointError, InvalidRequest, ModelPathNotFound
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
    from model_server.models.weight import blueprint

    recipe = make_recipe("saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd175B32Test", None, {})
    parameters = blueprint(recipe.build).bytes / 2
    assert 174e9 < parameters < 176e9


def test_a_model_of_sizes_unknown_needs_a_checkpoint() -> None:
    with pytest.raises(InvalidRequest, match="takes its sizes from a checkpoint"):
        make_recipe("llama", None, {})


def test_random_weight_models_refuse_a_checkpoint() -> None:
    with pytest.raises(CheckpointError, match='checkpoint "None"'):
        make_recipe(TEST_2B, LLAMA, {})


def test_auto_reads_the_family_from_the_checkpoint() -> None:
    assert make_recipe("auto", LLAMA, {}).layers == 2
    with pytest.raises(CheckpointError, match="no family here computes model_type 'mamba'"):
        make_recipe("auto", LLAMA | {"model_type": "mamba"}, {})


def test_a_context_can_be_shortened_but_not_stretched() -> None:
    assert make_recipe("llama", LLAMA, {"MAX_CONTEXT": "64"}).max_context == 64
    with pytest.raises(InvalidRequest, match="more than the 128 tokens"):
        make_recipe("llama", LLAMA, {"MAX_CONTEXT": "256"})


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"DTYPE": '"int3"'}, "DTYPE"),
        ({"NUM_SAMPLES": "0"}, "NUM_SAMPLES is 0"),
        ({"NUM_LAYERS": "0"}, "NUM_LAYERS must be at least 1"),
    ],
)
def test_values_out_of_range_are_refused(overrides: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        make_recipe(TEST_2B, None, overrides)
