"""Values of Saxml's classes: each is honoured or refused, and a checkpoint must agree with them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from model_server.engine.buckets import closed_set
from model_server.models.recipe import Recipe
from model_server.models.registry import find, make_recipe, model_paths
from sax.errors import CheckpointError, InvalidRequest
from sax.overrides.saxml_overrides import SEARCHING, SLOTTED, override_warnings, saxml_class_of
from sax.overrides.saxml_parameter import Verdict
from sax.overrides.saxml_parameters import SAXML_PARAMETERS
from sax.types import SamplingParams

ROOT = "saxml.server.pax.lm.params."
LM = f"{ROOT}lm_cloud.LmCloudSpmd2BTest"
LLAMA = f"{ROOT}lm_cloud.LLaMA7BH100"
SHRUNK = {
    "NUM_LAYERS": "2",
    "MODEL_DIMS": "32",
    "HIDDEN_DIMS": "64",
    "NUM_HEADS": "4",
    "DIMS_PER_HEAD": "8",
}
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 97,
    "max_position_embeddings": 512,
}


def defaults(overrides: dict[str, str]) -> SamplingParams:
    return make_recipe(LM, None, overrides).defaults


def test_lengths_make_the_context() -> None:
    recipe = make_recipe(LM, None, {"INPUT_SEQ_LEN": "100", "MAX_DECODE_STEPS": "20"})
    assert (recipe.max_context, recipe.defaults.max_tokens) == (120, 20)
    assert make_recipe(LM, None, {"MAX_CONTEXT": "64"}).max_context == 64


def test_answers_are_as_long_as_a_call_that_says_nothing_gets_in_saxml() -> None:
    recipe = make_recipe(f"{ROOT}lm_cloud.LLaMA13B", None, {})
    assert (recipe.max_context, recipe.defaults.max_tokens) == (4096 + 1024, 128)
    shorter = make_recipe(f"{ROOT}lm_cloud.LLaMA13B", None, {"MAX_DECODE_STEPS": "16"})
    assert shorter.defaults.max_tokens == 16


def test_an_empty_text_has_a_start_token() -> None:
    assert make_recipe(LM, None, {}).start_token == 0
    assert make_recipe("llama", CONFIG, {}).start_token is None


def test_a_batch_is_slots_for_every_sample_of_its_requests() -> None:
    assert make_recipe(LM, None, {}).slots is None
    assert make_recipe(LM, None, {"BATCH_SIZE": "4"}).slots == 8
    assert make_recipe(LM, None, {"NUM_CACHE_SLOTS": "5"}).slots == 5


def test_a_prefill_batch_changes_no_slots() -> None:
    assert make_recipe(LLAMA, None, {"BATCH_SIZE": "2"}).slots == 16
    assert make_recipe(LLAMA, None, {"BATCH_SIZE": "2", "NUM_CACHE_SLOTS": "0"}).slots == 2


def test_end_tokens_replace_the_tokenizers() -> None:
    assert defaults({}).stop_token_ids == ()
    assert not defaults({}).ignore_eos
    one, several = defaults({"EOS_ID": "7"}), defaults({"STOP_TOKEN_IDS": "[7, 9]", "EOS_ID": "1"})
    assert (one.stop_token_ids, one.ignore_eos) == ((7,), True)
    assert (several.stop_token_ids, several.ignore_eos) == ((7, 9), True)


def test_classes_of_token_ids_are_those_of_saxml() -> None:
    """Whether each class reads ids, and answers with them."""
    classes = {
        "lm_cloud.LLaMA70BInt8TPUv5e8": (False, False),
        "lm_cloud.LLaMA70BInt8TokenizedInputTPUv5e8": (True, False),
        "lm_cloud.LLaMA70BInt8TokenizedInputTPUv5e8Stream": (True, True),
        "gptj.GPTJ4BF16BS32": (False, False),
        "gptj.GPTJ4TokenizedBF16BS32": (True, True),
    }
    as_text = {"TOKENIZED_INPUT": "false", "TOKENIZED_OUTPUT": "false"}
    for name, wanted in classes.items():
        recipe = make_recipe(ROOT + name, None, {})
        assert (recipe.tokenized_input, recipe.tokenized_output) == wanted, name
        recipe = make_recipe(ROOT + name, None, as_text)
        assert (recipe.tokenized_input, recipe.tokenized_output) == (False, False), name


def test_a_class_that_saxml_searches_with_does_so_here() -> None:
    beams = {"gptj.GPTJ": (4, 30), "c4.C4SpmdGpt3AdamOrgHP": (4, 0), "lm_cloud.LLaMA7B": (0, 0)}
    for name, wanted in beams.items():
        recipe = make_recipe(ROOT + name, None, {})
        assert (recipe.defaults.beam_size, recipe.defaults.min_tokens) == wanted, name
        assert not recipe.note


def test_any_class_can_search() -> None:
    found = defaults({"USE_BEAM_SEARCH": "true", "BEAM_SEARCH_EARLY_EXIT": "true"})
    assert (found.beam_size, found.length_penalty, found.early_stopping) == (4, 0.8, True)
    assert (found.temperature, found.top_k, found.top_p) == (1.0, 0, 1.0), "no sample's"
    assert found.tokens_per_beam == 0, "as many as there are beams"
    few = {"USE_BEAM_SEARCH": "true", "TOKENS_PER_BEAM": "2"}
    assert (defaults(few).beam_size, defaults(few).tokens_per_beam) == (4, 2)


def test_token_ids_are_no_message_of_a_chat() -> None:
    with pytest.raises(InvalidRequest, match="TOKENIZED_INPUT they are token ids") as caught:
        make_recipe(LM, None, {"TOKENIZED_INPUT": "true", "QUERY_FORMAT": '"chat"'})
    assert caught.value.param == "overrides.QUERY_FORMAT"


def test_sampling_values_are_the_defaults_of_a_call() -> None:
    found = defaults({"TEMPERATURE": "0.7", "TOP_K": "5", "TOP_P": "0.5"})
    assert (found.temperature, found.top_k, found.top_p) == (0.7, 5, 0.5)
    assert make_recipe(LM, None, {"NUM_SAMPLES": "3"}).samples == 3


def test_values_out_of_range_are_refused() -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"NUM_LAYERS": "0"}, "NUM_LAYERS=0: give a whole number of 1 or more"),
        ({"NUM_LAYERS": "null"}, "NUM_LAYERS=null: give a whole number of 1 or more"),
        ({"INPUT_SEQ_LEN": "-1"}, "INPUT_SEQ_LEN=-1: give a whole number of 1 or more"),
        ({"BATCH_SIZE": "0"}, "BATCH_SIZE=0: give a whole number of 1 or more, or a list of them"),
        ({"BATCH_SIZE": "[1, 0]"}, "BATCH_SIZE=.1, 0.: give a whole number of 1 or more"),
        ({"PER_EXAMPLE_MAX_DECODE_STEPS": '"x"'}, "PER_EXAMPLE_MAX_DECODE_STEPS is 'x'"),
        ({"MAX_DECODE_STEPS": "[]"}, "MAX_DECODE_STEPS"),
        ({"EOS_ID": "32000"}, "EOS_ID is 32000: give token ids from 0 to 31999"),
        ({"EOS_ID": '"</s>"'}, "EOS_ID"),
        ({"STOP_TOKEN_IDS": "[1, -1]"}, "STOP_TOKEN_IDS"),
        ({"STOP_TOKEN_IDS": "[1]", "EOS_ID": "32000"}, "EOS_ID is 32000"),
        ({"BEAM_SIZE": "0"}, "BEAM_SIZE=0: give a whole number from 1 to 16"),
        ({"BEAM_SIZE": "null"}, "BEAM_SIZE=null"),
        ({"USE_BEAM_SEARCH": "true", "MIN_DECODE_STEPS": "32"}, "MIN_DECODE_STEPS is 32"),
        ({"TOKENS_PER_BEAM": "0"}, "TOKENS_PER_BEAM=0: give a whole number from 1 to 20, or null"),
        ({"TOKENS_PER_BEAM": "true"}, "TOKENS_PER_BEAM=true"),
        ({"MAX_SEQ_LEN": "64", "MAX_CONTEXT": "32"}, "MAX_SEQ_LEN and MAX_CONTEXT set the same"),
        ({"QUANTIZE_KV": "true", "KV_CACHE_DTYPE": '"int8"'}, "QUANTIZE_KV and KV_CACHE_DTYPE"),
        ({"GENERATE_ONLY": "true", "SCORE_ONLY": "true"}, "leave no method"),
        (
            {"GENERATION_USE_GEOMEAN_PROB_SCORE": "true", "USE_BEAM_SEARCH": "true"},
            "GENERATION_USE_GEOMEAN_PROB_SCORE is of samples",
        ),
        (
            {"USE_BEAM_SEARCH": "true", "MIN_DECODE_STEPS": "3", "TOKENS_PER_BEAM": "20"},
            "TOKENS_PER_BEAM is 20: with MIN_DECODE_STEPS 3 give a number from 1 to 19",
        ),
        ({"QUANTIZE": '"int3"'}, "QUANTIZE"),
        ({"TEMPERATURE": "-1"}, "TEMPERATURE=-1"),
        ({"TEMPERATURE": "null"}, "TEMPERATURE=null"),
        ({"TOP_K": "-2"}, "TOP_K=-2"),
        ({"TOP_P": "0"}, "TOP_P=0: give a number above 0 and at most 1"),
        ({"ICI_MESH_SHAPE": "null", "NUM_CACHE_SLOTS": '"x"'}, "NUM_CACHE_SLOTS=.x.: give"),
        ({"ICI_MESH_SHAPE": "[1, 4]"}, "a list of three sizes"),
    ]

    for overrides, says in cases:
        with pytest.raises(InvalidRequest, match=says) as caught:
            make_recipe(LM, None, overrides)
        assert caught.value.param in {f"overrides.{key}" for key in overrides}, overrides


HALVED = {
    int: lambda value: value // 2,
    float: lambda value: value / 2,
    bool: lambda value: not value,
    str: lambda value: {"bfloat16": "float32", "float32": "bfloat16"}[value],
    list: lambda value: [2, 1, 3],
}
UNSAID = {
    "MAX_CONTEXT": 32,
    "KV_CACHE_BYTES": 2**20,
    "NUM_CACHE_SLOTS": 3,
    "BATCH_SIZE": 3,
    "NUM_KV_HEADS": 4,
    "EOS_ID": 3,
    "STOP_TOKEN_IDS": [3],
    "QUERY_FORMAT": "raw",
    "QUANTIZE": "int8",
    "PER_EXAMPLE_MAX_DECODE_STEPS": 3,
    "MAX_SEQ_LEN": 40,
    "EXTRA_INPUTS": {"temperature": 0.25, "per_example_max_decode_steps": 3},
    "GENERATE_ONLY": True,
    "MIN_DECODE_STEPS": 3,
    "TOKENS_PER_BEAM": 3,
    "CHAT_TEMPLATE": "{{ messages }}",
    "TOOL_PARSER": "hermes",
    "REASONING_PARSER": "think",
    "ACTIVATIONS": "int8",
    "KV_CACHE_DTYPE": "int8",
    "SHARDING_RULES": {"tokens": "data"},
    "MAX_ADAPTERS": 2,
    "DRAFT_MODEL": "/nowhere",
    "DRAFT_QUANTIZE": "int8",
    "SPECULATION": "off",
    "TASKS": ["generate", "embed"],
    "POOLING": "mean",
    "NORMALIZE": True,
    "MATRYOSHKA": True,
    "CLASSIFY_ACTIVATION": "none",
    "RERANK_TOKENS": ["yes", "no"],
    "GRADIENT_WRT_INPUT_TENSOR_NAMES": ["weights"],
    "GRADIENT_WRT_MDL_VAR_TENSOR_NAMES": ["final_norm.scale"],
    "IMAGES": True,
    "SOUNDS": True,
    "MEDIA_ROWS": 64,
    "IMAGE_PIXELS": 1 << 20,
}


@pytest.mark.parametrize("path", [LM, LLAMA, f"{ROOT}gptj.GPTJ", f"{ROOT}c4.C4SpmdGpt3AdamOrgHP"])
def test_no_value_of_a_class_is_overridden_and_ignored(path: str) -> None:
    one_layer = {"NUM_LAYERS": "1"}  # enough to see every size
    plain = facts(path, one_layer)
    for key, value in find(path).overridable.items():
        other = UNSAID[key] if key in UNSAID else HALVED[type(value)](value)
        changed = one_layer | {key: json.dumps(other)}
        found = facts_or_refusal(path, changed)
        warned = any(key in warning for warning in override_warnings(path, changed))
        assert found != plain or warned, key
        assert not isinstance(found, str) or key in found


def facts_or_refusal(path: str, overrides: dict[str, str]) -> Any:
    try:
        return facts(path, overrides)
    except InvalidRequest as refused:
        return refused.text


def facts(path: str, overrides: dict[str, str]) -> Any:
    recipe = make_recipe(path, None, overrides)
    module = recipe.blueprint()
    shapes = [(weight.path, weight.shape) for weight in module.declarations]
    model = module.assemble([leaf for weight in module.declarations for leaf in weight.leaves])
    return (
        shapes,
        model.ropes,
        recipe.cache(1),
        recipe.max_context,
        recipe.dtype,
        recipe.kv_cache_dtype,
        recipe.quantize,
        recipe.mesh_shape,
        recipe.rules,
        recipe.kv_cache_bytes,
        recipe.slots,
        recipe.samples,
        recipe.query_format,
        recipe.tokenized_input,
        recipe.tokenized_output,
        recipe.defaults,
        recipe.tasks,
        recipe.routed_experts,
        recipe.adapters,
        recipe.speculation,
        recipe.chat,
        recipe.replies,
        recipe.batches,
    )


def test_a_checkpoint_of_the_classs_sizes_is_loaded() -> None:
    recipe = make_recipe(LLAMA, CONFIG, SHRUNK)
    assert (recipe.vocab, recipe.embed, recipe.slots) == (97, 32, 16)
    assert recipe.max_context == 512  # the class's 2,048 give way to what the model was made for
    names = {name for weight in recipe.blueprint().declarations for name in weight.source.names}
    assert "model.layers.1.self_attn.q_proj.weight" in names


def test_a_checkpoint_of_other_sizes_is_refused_with_both() -> None:
    for key, size in SHRUNK.items():
        other = SHRUNK | {key: str(2 * int(size))}
        if key == "NUM_HEADS":
            other["NUM_KV_HEADS"] = "4"
        says = rf"{key} is {size} but LLaMA7BH100 has {other[key]}:"
        with pytest.raises(CheckpointError, match=says):
            make_recipe(LLAMA, CONFIG, other)


def test_the_vocabulary_is_the_checkpoints_unless_somebody_insists() -> None:
    assert make_recipe(LLAMA, CONFIG, SHRUNK | {"VOCAB_SIZE": "97"}).vocab == 97
    with pytest.raises(CheckpointError, match="VOCAB_SIZE is 97 but .* has 98"):
        make_recipe(LLAMA, CONFIG, SHRUNK | {"VOCAB_SIZE": "98"})


def test_a_context_that_was_asked_for_is_not_shortened_in_silence() -> None:
    with pytest.raises(InvalidRequest, match="INPUT_SEQ_LEN make a context of 1624"):
        make_recipe(LLAMA, CONFIG, SHRUNK | {"INPUT_SEQ_LEN": "600"})


def test_a_checkpoint_of_another_family_is_refused() -> None:
    with pytest.raises(CheckpointError, match="model_type 'llama', not 'gemma'"):
        make_recipe(LLAMA, CONFIG | {"model_type": "gemma"}, SHRUNK)


def test_models_without_checkpoints_say_so() -> None:
    with pytest.raises(
        CheckpointError, match='LmCloudSpmd2BTest loads checkpoints.*Pax.*or "None"'
    ):
        make_recipe(LM, CONFIG, {})


def test_a_context_left_to_the_memory_is_at_most_the_classs() -> None:
    own = make_recipe(LM, None, {})
    made = make_recipe(LM, None, {"MAX_CONTEXT": '"auto"'})
    assert (made.max_context, made.auto_context) == (own.max_context, True)
    assert (own.auto_context, make_recipe(LM, None, {"MAX_CONTEXT": "64"}).auto_context) == (
        None,
        False,
    )
    with pytest.raises(InvalidRequest, match="MAX_CONTEXT is 'most'"):
        make_recipe(LM, None, {"MAX_CONTEXT": '"most"'})


CALL_VALUES_LM, GPTJ = f"{ROOT}lm_cloud.LmCloudSpmd2BTest", f"{ROOT}gptj.GPTJ"
CALL_VALUES_LLAMA = f"{ROOT}lm_cloud.LLaMA7B"
CLASSES = [path for path in model_paths() if path.startswith(ROOT)]


def recipe(path: str = CALL_VALUES_LM, **overrides: Any) -> Recipe:
    made = make_recipe(path, None, {key: json.dumps(value) for key, value in overrides.items()})
    assert isinstance(made, Recipe)
    return made


def test_what_is_declared_as_honoured_is_what_classes_read() -> None:
    read = {key for path in CLASSES for key in find(path).overridable}
    declared = {each.verdict: set[str]() for each in SAXML_PARAMETERS.values()}
    for each in SAXML_PARAMETERS.values():
        declared[each.verdict].add(each.name)
    assert declared[Verdict.HONOURED] <= read
    assert not read & (declared[Verdict.IDLE] | declared[Verdict.REFUSED])


def test_the_classes_that_batch_continuously_or_search_are_known_by_name() -> None:
    known = {path: find(path).overridable for path in CLASSES}
    slotted = {saxml_class_of(path) for path, values in known.items() if values["NUM_CACHE_SLOTS"]}
    searching = {
        saxml_class_of(path) for path, values in known.items() if values["USE_BEAM_SEARCH"]
    }
    assert (slotted, searching) == (SLOTTED, SEARCHING)


DOCUMENTED = {
    "BATCH_SIZE": 32,
    "NUM_SAMPLES": 1,
    "BUCKET_KEYS": [256, 512, 1024],
    "TOP_K": 1,
    "INPUT_SEQ_LEN": 1024,
    "MAX_DECODE_STEPS": 1024,
    "EXTRA_INPUTS": {
        "temperature": 0,
        "per_example_max_decode_steps": 1024,
        "per_example_top_k": 1,
        "per_example_top_p": 0,
    },
}


def test_every_class_takes_the_line_of_saxmls_documentation() -> None:
    made = {path: recipe(path, **DOCUMENTED) for path in CLASSES}
    found = {path: (of.max_context, of.defaults.max_tokens) for path, of in made.items()}
    assert found == dict.fromkeys(CLASSES, (2048, 1024))


def test_declared_extra_inputs_are_what_a_call_gets() -> None:
    found = recipe(**DOCUMENTED).defaults
    assert (found.temperature, found.top_k, found.max_tokens) == (0, 1, 1024)
    assert found.top_p == 0  # the likeliest token
    stopped = recipe(EXTRA_INPUTS={"eos_id": [0, 1, 7]}).defaults
    assert (stopped.stop_sequence, stopped.ignore_eos) == ((1, 7), True)


def test_what_no_extra_input_declares_is_as_in_saxml() -> None:
    found = recipe(CALL_VALUES_LLAMA, EXTRA_INPUTS={}).defaults
    assert (found.temperature, found.top_p, found.top_k) == (0, 1, 40)
    assert found.max_tokens == 1024, "no per_example_max_decode_steps: MAX_DECODE_STEPS"
    told = recipe(CALL_VALUES_LLAMA, EXTRA_INPUTS={}, TEMPERATURE=0.7, TOP_P=0.5, TOP_K=7).defaults
    assert (told.temperature, told.top_p, told.top_k) == (0.7, 0.5, 7)
    both = recipe(CALL_VALUES_LLAMA, EXTRA_INPUTS={"temperature": 0.1}, TEMPERATURE=0.7).defaults
    assert both.temperature == pytest.approx(0.1)


def test_a_declared_extra_input_without_a_value_is_as_if_it_was_not_declared() -> None:
    """As Saxml's LLaMA70BInt8TPUv5e8 has it."""
    declared = {"temperature": 0.0, "per_example_top_k": 1, "per_example_top_p": None}
    found = recipe(CALL_VALUES_LLAMA, EXTRA_INPUTS=declared).defaults
    assert (found.temperature, found.top_k, found.top_p) == (0, 1, 1)


def test_declared_extra_inputs_stay_within_the_limits_of_the_class() -> None:
    wide = {"per_example_top_k": 200, "per_example_max_decode_steps": 9999}
    found = recipe(CALL_VALUES_LLAMA, EXTRA_INPUTS=wide).defaults
    assert (found.top_k, found.max_tokens) == (40, 1024)
    assert recipe(CALL_VALUES_LLAMA, EXTRA_INPUTS=wide, TOP_K=0).defaults.top_k == 200


def test_a_search_heeds_lengths_of_declared_extra_inputs_only() -> None:
    declared = {"temperature": 0.3, "per_example_top_k": 3, "per_example_max_decode_steps": 64}
    found, plain = recipe(GPTJ, EXTRA_INPUTS=declared).defaults, recipe(GPTJ).defaults
    assert found.max_tokens == 64
    assert (found.temperature, found.top_k) == (plain.temperature, plain.top_k)
    assert found.beam_size == plain.beam_size == 4


def test_a_list_of_batch_sizes_is_compiled() -> None:
    made = recipe(BATCH_SIZE=[1, 4, 16], NUM_SAMPLES=3)
    assert (made.slots, made.batches) == (48, (3, 12, 48))
    buckets = closed_set(48, (1,), batches=made.batches)
    assert [each.decodes for each in buckets if not each.blocks] == [2, 3, 12, 48]
    assert recipe(BATCH_SIZE=4).slots == 8, "two samples each"
    searched = recipe(BATCH_SIZE=[2], USE_BEAM_SEARCH=True)
    assert (searched.slots, searched.batches) == (8, (8,))


def test_slots_replace_batches_and_zero_slots_do_not() -> None:
    assert (recipe(NUM_CACHE_SLOTS=5, BATCH_SIZE=1).slots, recipe(NUM_CACHE_SLOTS=5).batches) == (
        5,
        (),
    )
    none = recipe(f"{ROOT}gemma.Gemma2BFP16", NUM_CACHE_SLOTS=0)
    assert (none.slots, none.batches) == (None, ())
    assert recipe(f"{ROOT}gemma.Gemma2BFP16", NUM_CACHE_SLOTS=0, BATCH_SIZE=4).slots == 4


def test_the_longest_of_several_decode_lengths_counts() -> None:
    made = recipe(INPUT_SEQ_LEN=100, MAX_DECODE_STEPS=[8, 32, 16])
    assert (made.max_context, made.defaults.max_tokens) == (132, 32)


def test_the_length_of_a_sequence_is_the_context() -> None:
    made = recipe(MAX_SEQ_LEN=77)
    assert (made.max_context, made.auto_context) == (77, False)
    with pytest.raises(InvalidRequest, match="MAX_SEQ_LEN make a context of 4096") as caught:
        recipe(GPTJ, MAX_SEQ_LEN=4096)
    assert caught.value.param == "overrides.MAX_SEQ_LEN"


def test_quantised_keys_and_values_are_int8() -> None:
    assert recipe(QUANTIZE_KV=True).kv_cache_dtype == "int8"


def test_replies_are_as_the_class_says() -> None:
    assert recipe(INCLUDE_PREFIX_IN_RESULT=True).replies.begins_with_query
    assert not recipe(SORT_SAMPLES=False).replies.best_first
    assert recipe(GENERATE_ONLY=True).replies.withheld == ("lm.score",)
    assert recipe(SCORE_ONLY=True).replies.withheld == ("lm.generate", "lm.generate_stream")
    assert recipe(ENABLE_GENERATE=False).replies.withheld == ("lm.generate",)
    scored = recipe(SCORING_INCLUDE_EOS_SCORE=True, EOS_ID=7, STOP_TOKEN_IDS=[8, 9]).replies
    assert (scored.scores_end, scored.end_token) == (True, 7)
