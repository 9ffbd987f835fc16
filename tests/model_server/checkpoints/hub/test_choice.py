"""The files of a checkpoint are chosen: what a model server reads, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.checkpoints.hub.choice import choose
from sax.errors import CheckpointNotFound

REPOSITORY = [
    "README.md",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "model.safetensors",
    "onnx/model.onnx",
    "onnx/config.json",
    "pytorch_model.bin",
    "runs/events.out",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "training_args.bin",
    "vocab.json",
]


def test_weights_come_last_and_other_formats_not_at_all() -> None:
    chosen = choose(REPOSITORY)
    assert chosen[-1] == "model.safetensors"
    assert not any(name.endswith((".bin", ".onnx", ".md")) or "/" in name for name in chosen)
    assert {"config.json", "tokenizer.json", "merges.txt", "vocab.json"} <= set(chosen)


def test_shards_are_taken_with_their_index_and_a_second_copy_of_the_weights_is_not() -> None:
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = "model.safetensors.index.json"
    chosen = choose(["config.json", "consolidated.safetensors", index, *shards, "tekken.json"])
    assert set(chosen) == {"config.json", "tekken.json", index, *shards}
    assert chosen[-2:] == shards


def test_the_modules_of_a_sentence_encoder_and_an_adapter_are_checkpoints_too() -> None:
    encoder = ["modules.json", "config.json", "1_Pooling/config.json", "model.safetensors"]
    encoder += ["artifact.metadata"]  # colbert-ir's
    assert set(choose([*encoder, "openvino/model.xml"])) == set(encoder)
    adapter = ["adapter_config.json", "adapter_model.safetensors"]
    assert choose([*adapter, "README.md"]) == adapter


def test_a_models_own_adapters_come_with_it() -> None:
    adapter = ["adapter_config.json", "adapter_model.safetensors"]
    below = [f"speech-lora/{name}" for name in adapter]
    index, shard = "model.safetensors.index.json", "model-00001-of-00001.safetensors"
    for weights in (["model.safetensors"], [index, shard]):
        chosen = choose(["config.json", *adapter, *below, "old/adapter_config.json", *weights])
        assert set(chosen) == {"config.json", *adapter, *below, *weights}
        assert chosen[-1] == weights[-1]


def test_one_gguf_file_is_chosen_by_its_name_or_the_end_of_it_or_because_it_is_alone() -> None:
    files = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "README.md"]
    assert choose(files[:1]) == choose(files, "Q4_K_M") == choose(files, "q4_k_m.gguf")
    assert choose(files, "m-Q8_0.gguf") == ["m-Q8_0.gguf"]
    encoders = ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-other-F16.gguf", "x/mmproj-m.gguf"]
    assert choose([*files, *encoders], "Q8_0") == ["mmproj-BF16.gguf", "m-Q8_0.gguf"]
    assert choose([files[0], "mmproj-m-f16.gguf", *encoders]) == ["mmproj-m-f16.gguf", files[0]]
    with pytest.raises(CheckpointNotFound, match="2 GGUF files: name one.*m-Q4_K_M.gguf, m-Q8_0"):
        choose(files)
    with pytest.raises(CheckpointNotFound, match="no file Q5_0; there are m-Q4_K_M.gguf"):
        choose(files, "Q5_0")


def test_a_split_gguf_file_is_chosen_with_all_its_parts_by_any_of_them() -> None:
    parts = [f"Q4_K_M/m-Q4_K_M-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    files = [parts[2], "README.md", parts[0], parts[1]]
    assert choose(files) == choose(files, "Q4_K_M") == choose(files, parts[1]) == parts
    assert choose([*files, "m-Q8_0.gguf"], "q4_k_m.gguf") == parts
    with pytest.raises(CheckpointNotFound, match=r"holds 2 GGUF files.*-00001-of-00003\.gguf"):
        choose([*files, "m-Q8_0.gguf"])
    with pytest.raises(CheckpointNotFound, match=r"one of 3 parts, of which .*-00002-of-00003"):
        choose([parts[0], parts[2]], "Q4_K_M")


def test_a_repository_of_pickles_has_nothing_to_load() -> None:
    with pytest.raises(CheckpointNotFound, match=r"neither safetensors.*pytorch_model.bin"):
        choose(["config.json", "pytorch_model.bin"])


@given(st.lists(st.text(max_size=12), max_size=30), st.text(max_size=6))
def test_only_what_is_there_is_chosen(names: list[str], wanted: str) -> None:
    try:
        chosen = choose([*REPOSITORY, *names], wanted)
    except CheckpointNotFound:
        return
    assert set(chosen) <= {*REPOSITORY, *names}
    assert len(chosen) == len(set(chosen))
