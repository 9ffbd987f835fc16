"""The settings around a tokenizer.json, and where a chat template may stand."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from model_server.checkpoints.huggingface.folder_files import folder_chat_template, folder_tokenizer
from model_server.text.token_bytes import byte_alphabet
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.tiny_folder import CHAT, CONFIG, CONTROL, write_json
from tests.model_server.text.vocabularies.golden import PLACE, differences


def source(folder: Path) -> str | None:
    template = folder_chat_template(folder, folder_tokenizer(folder, CONFIG))
    return None if template is None else template.source


def test_a_template_is_found_where_any_of_its_makers_put_it(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {})
    assert source(folder) is None
    write_json(folder / "chat_template.json", {"chat_template": "from json"})
    assert source(folder) == "from json"
    several = [{"name": "rag", "template": "no"}, {"name": "default", "template": CHAT}]
    write_json(folder / "tokenizer_config.json", {"chat_template": several})
    assert source(folder) == CHAT
    (folder / "chat_template.jinja").write_text("own", encoding="utf-8")
    assert source(folder) == "own"


def test_a_template_for_tools_lies_in_the_list_or_beside_it(folder: Path) -> None:
    def for_tools() -> str:
        template = folder_chat_template(folder, folder_tokenizer(folder, CONFIG))
        assert template is not None
        assert template.source == CHAT
        return template.for_tools

    several = [{"name": "default", "template": CHAT}, {"name": "tool_use", "template": "listed"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": several})
    assert for_tools() == "listed"
    beside = folder / "additional_chat_templates"
    beside.mkdir()
    (beside / "tool_use.jinja").write_text("beside", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT, encoding="utf-8")
    assert for_tools() == "beside"


@each_case("name", ["tokenizer_config.json", "chat_template.json"])
@each_case("given", [5, "{% for %}", {"default": "x"}])
def test_a_wrong_template_is_named(folder: Path, name: str, given: object) -> None:
    write_json(folder / "tokenizer_config.json", {})
    write_json(folder / name, {"chat_template": given})
    with pytest.raises(CheckpointError, match=name):
        source(folder)


def test_a_flag_that_is_no_flag_is_not_taken_for_one(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {"bos_token": "<|turn|>", "add_bos_token": None})
    assert not folder_tokenizer(folder, CONFIG).adds_bos
    write_json(folder / "tokenizer_config.json", {"bos_token": "<|turn|>", "add_bos_token": True})
    assert folder_tokenizer(folder, CONFIG).encode("a")[0] == 1


NO_IDS = {"text_config": {}, "model_type": "llama"}
MAP = {"bos_token": "<|turn|>", "eos_token": {"content": "<|stop|>"}, "unk_token": None}


@each_case(
    "settings, bos, eos",
    [
        ({}, "<|turn|>", {"<|stop|>"}),
        ({"added_tokens_decoder": {}}, "<|turn|>", {"<|stop|>"}),
        ({"eos_token": "<|end|>", "added_tokens_decoder": {}}, "<|turn|>", {"<|end|>"}),
        ({"eos_token": "<|end|>", "bos_token": None}, "<|turn|>", {"<|stop|>"}),
    ],
)
def test_start_and_end_may_be_in_special_tokens_map(
    folder: Path, settings: dict[str, Any], bos: str, eos: set[str]
) -> None:
    """As in transformers, which asks it first where no added tokens are listed."""
    write_json(folder / "tokenizer_config.json", {"chat_template": "{{ eos_token }}"} | settings)
    write_json(folder / "special_tokens_map.json", MAP)
    write_json(folder / "generation_config.json", {})
    tokenizer = folder_tokenizer(folder, NO_IDS)
    assert tokenizer.bos_id == CONTROL.index(bos)
    assert tokenizer.eos_ids == {CONTROL.index(text) for text in eos}
    template = folder_chat_template(folder, tokenizer)
    assert template is not None
    assert template.render([]) in eos


def test_ids_may_be_in_any_file_that_has_them(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {})
    write_json(folder / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [0]})
    tokenizer = folder_tokenizer(folder, NO_IDS | {"text_config": {"eos_token_id": 2}})
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (1, {0, 2})
    (folder / "generation_config.json").unlink()
    inner = {"bos_token_id": 0, "eos_token_id": 2}
    tokenizer = folder_tokenizer(folder, NO_IDS | {"text_config": inner})
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (0, {2})


def test_the_file_of_a_wrong_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be loaded"):
        folder_tokenizer(folder, CONFIG)


LETTERS = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
VOCAB = {token: i for i, token in enumerate([*LETTERS, "he", "12", "<|endoftext|>"])}
MERGES = "#version: 0.2\nh e\n1 2\n"
END = VOCAB["<|endoftext|>"]
QWEN_END = {"420": {"content": "<|endoftext|>", "special": True}}


def put(folder: Path, name: str, golden: str) -> None:
    shutil.copy(PLACE / golden, folder / name)


def settings(folder: Path, **content: Any) -> None:
    write_json(folder / "tokenizer_config.json", content)


def opened(folder: Path, **config: Any) -> HfTokenizer:
    return folder_tokenizer(folder, config)


def put_pairs(folder: Path, merges: str = MERGES) -> None:
    write_json(folder / "vocab.json", VOCAB)
    (folder / "merges.txt").write_text(merges, encoding="utf-8")


@each_case(
    "file, golden",
    [
        ("tokenizer.model", "bpe_llama"),
        ("spiece.model", "bpe_llama"),
        ("sentencepiece.bpe.model", "unigram_bytes"),
        ("tokenizer.model.v3", "bpe_gemma"),
    ],
)
def test_sentencepiece_files_are_found_by_their_names(
    tmp_path: Path, file: str, golden: str
) -> None:
    put(tmp_path, file, f"{golden}.model")
    tokenizer = opened(tmp_path)
    assert {text for text, _, _ in differences(tokenizer, golden)} <= {"<tool>", "<|x|>"}
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.adds_bos) == (1, {2}, True)


def test_the_settings_beside_a_sentencepiece_file_count(tmp_path: Path) -> None:
    put(tmp_path, "tokenizer.model", "bpe_llama.model")
    settings(tmp_path, add_bos_token=False, add_eos_token=True, legacy=False, bos_token="<unk>")
    tokenizer = opened(tmp_path)
    assert not tokenizer.adds_bos
    assert tokenizer.bos_id == 0
    assert tokenizer.encode_framed("a")[-1] == 2
    a = tokenizer.encode("a")
    assert tokenizer.encode_chat("<s>a") != [1, *a]
    settings(tmp_path)
    assert opened(tmp_path).encode_chat("<s>a") == [1, *a]


def test_tokens_added_to_a_sentencepiece_file_get_the_ids_they_are_given(tmp_path: Path) -> None:
    put(tmp_path, "tokenizer.model", "bpe_llama.model")
    size = opened(tmp_path).vocab_size
    write_json(tmp_path / "added_tokens.json", {"<turn>": size, "<think>": size + 1})
    write_json(tmp_path / "special_tokens_map.json", {"additional_special_tokens": ["<turn>"]})
    tokenizer = opened(tmp_path)
    assert tokenizer.encode_chat("<turn><think>") == [size, size + 1]
    assert size not in tokenizer.encode("<turn>")
    assert tokenizer.encode("<think>")[-1] == size + 1
    assert tokenizer.control_tokens.texts == {"<unk>", "<s>", "</s>", "<turn>"}


def test_added_tokens_may_swallow_spaces_and_repeat_what_the_file_says(tmp_path: Path) -> None:
    put(tmp_path, "tokenizer.model", "bpe_gemma.model")
    size = opened(tmp_path).vocab_size
    two = opened(tmp_path).encode("  a", add_bos=False)[0]
    listed = {
        "1": {"content": "<s>", "special": True},
        str(two): {"content": "\u2581\u2581", "special": False},
        str(size): {"content": "<turn>", "special": True, "rstrip": True},
    }
    settings(tmp_path, added_tokens_decoder=listed)
    tokenizer = opened(tmp_path)
    assert tokenizer.encode_chat("<turn>\n a") == [size, *tokenizer.encode("a", add_bos=False)]
    # The file knows better how its own user-defined pieces are matched.
    assert {text for text, _, _ in differences(tokenizer, "bpe_gemma")} == set()


@each_case(
    "listed, words",
    [
        ({"1": {"content": "<start>"}}, "'<start>' has id 1.*'<s>'.*different models"),
        ({"9999": {"content": "<turn>"}}, "do not continue from"),
        ({"x": {"content": "<turn>"}}, "tokenizer_config.json does not list"),
        ({"600": {}}, "tokenizer_config.json does not list"),
        ({"600": "<turn>"}, "tokenizer_config.json does not list"),
        ({"-1": {"content": "<turn>"}}, "tokenizer_config.json does not list"),
        (["<turn>"], "tokenizer_config.json does not list"),
    ],
)
def test_added_tokens_that_do_not_fit_are_refused(tmp_path: Path, listed: Any, words: str) -> None:
    put(tmp_path, "tokenizer.model", "bpe_llama.model")
    settings(tmp_path, added_tokens_decoder=listed)
    with pytest.raises(CheckpointError, match=words) as caught:
        opened(tmp_path)
    assert str(tmp_path) in caught.value.text


@each_case("file", ["qwen.tiktoken", "tiktoken.model", "tokenizer.model"])
def test_tiktoken_files_are_known_under_any_name(tmp_path: Path, file: str) -> None:
    put(tmp_path, file, "qwen.tiktoken")
    settings(tmp_path, added_tokens_decoder=QWEN_END)
    tokenizer = opened(tmp_path, model_type="qwen")
    assert differences(tokenizer, "qwen") == []
    assert tokenizer.eos_ids == {420}


def test_mistrals_own_file_is_read(tmp_path: Path) -> None:
    put(tmp_path, "tekken.json", "tekken.json")
    tokenizer = opened(tmp_path, model_type="mistral")
    assert differences(tokenizer, "tekken") == []
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.adds_bos) == (1, {2}, True)


def test_vocab_and_merges_are_one_tokenizer(tmp_path: Path) -> None:
    put_pairs(tmp_path)
    tokenizer = opened(tmp_path, model_type="gpt2", eos_token_id=END)
    assert tokenizer.encode("he 12") == [VOCAB["he"], VOCAB["\u0120"], VOCAB["12"]]
    assert tokenizer.encode_chat("<|endoftext|>") == [END]
    assert END not in tokenizer.encode("<|endoftext|>")
    assert tokenizer.eos_ids == {END}
    assert not tokenizer.adds_bos


def test_the_class_of_the_tokenizer_says_how_text_is_cut(tmp_path: Path) -> None:
    put_pairs(tmp_path)
    settings(tmp_path, tokenizer_class="Qwen2TokenizerFast")
    assert opened(tmp_path, model_type="gpt2").encode("12") == [VOCAB["1"], VOCAB["2"]]
    settings(tmp_path, tokenizer_class="GPT2Tokenizer", add_prefix_space=True)
    assert opened(tmp_path).encode("12") == [VOCAB["\u0120"], VOCAB["12"]]


def test_added_tokens_of_vocab_and_merges(tmp_path: Path) -> None:
    put_pairs(tmp_path)
    listed = {
        str(END): {"content": "<|endoftext|>", "special": True},
        str(END + 9): {"content": "<|turn|>", "special": True},
    }
    settings(tmp_path, added_tokens_decoder=listed)
    assert opened(tmp_path, model_type="gpt2").encode_chat("<|turn|>") == [END + 9]
    settings(tmp_path, added_tokens_decoder={"3": {"content": "<|turn|>"}})
    with pytest.raises(CheckpointError, match=r"vocab\.json .*<\|turn\|>.*different models"):
        opened(tmp_path, model_type="gpt2")


def test_bert_words_are_read_with_their_settings(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "##se"]
    (tmp_path / "vocab.txt").write_bytes("\r\n".join([*words, ""]).encode())
    assert opened(tmp_path).encode_framed("These") == [2, 5, 7, 3]
    settings(tmp_path, do_lower_case=False)
    assert opened(tmp_path).encode_framed("These") == [2, 6, 7, 3]


def test_tokenizer_json_is_preferred(tmp_path: Path, folder: Path) -> None:
    put(folder, "tokenizer.model", "bpe_llama.model")
    assert folder_tokenizer(folder, {}).control_tokens.texts >= {"<|turn|>"}


def test_a_folder_without_any_vocabulary_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json.*tokenizer\.model.*vocab\.txt"):
        opened(tmp_path)


@each_case(
    "file, content, words",
    [
        ("tokenizer.model", b"not one", "SentencePiece"),
        ("tokenizer.model", (PLACE / "bpe_llama.model").read_bytes()[:3000], "truncated"),
        ("tokenizer.model", (PLACE / "llama3.model").read_bytes(), "'none' models|truncated"),
        ("x.tiktoken", b"\0", "the pre-tokenizer of None models"),
        ("tekken.json", b"[]", "JSON object"),
        ("tekken.json", b"{}", "not a valid tekken.json"),
        ("vocab.json", b'{"a": "b"}', "not all of its tokens have an id"),
        ("vocab.json", b"{}", r"merges\.txt cannot be read"),
        ("vocab.txt", b"a\nb\n", r"\[UNK\]"),
        ("vocab.txt", b"\xff", "UTF-8"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, file: str, content: bytes, words: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=words.replace("'none'", "None")) as caught:
        opened(tmp_path)
    assert str(tmp_path) in caught.value.text


@each_case(
    "merges, words",
    [("h e x\n", "line that is not a pair: 'h e x'"), ("q zz\n", "vocab.json cannot be loaded")],
)
def test_wrong_merges_are_named(tmp_path: Path, merges: str, words: str) -> None:
    put_pairs(tmp_path, merges)
    with pytest.raises(CheckpointError, match=words):
        opened(tmp_path, model_type="gpt2")


def test_an_unknown_way_of_cutting_is_refused(tmp_path: Path) -> None:
    put_pairs(tmp_path)
    with pytest.raises(CheckpointError, match="pre-tokenizer of 'weird' models"):
        opened(tmp_path, model_type="weird")


def test_a_chat_with_a_sentencepiece_tokenizer_survives_conversion(tmp_path: Path) -> None:
    put(tmp_path, "tokenizer.model", "unigram_rules.model")
    first = opened(tmp_path)
    again = HfTokenizer(first.serialized, bos="<s>")
    text = "\uff41\u0301 e\u0301...<tool> x"
    assert again.encode(text) == first.encode(text)
    assert json.loads(first.serialized)["normalizer"]["normalizers"][0]["type"] == "Precompiled"
