"""Reads config.json, tokenizer and chat template of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from model_server.checkpoints.files import read_bytes, read_json, read_text
from model_server.checkpoints.huggingface.rope_settings import settle_rope, spell_both
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from model_server.text.vocabularies.byte_level import byte_level, is_tiktoken, tekken, tiktoken
from model_server.text.vocabularies.cutting import GPT2, GPT_NEOX, QWEN2, Cutting, with_space_before
from model_server.text.vocabularies.sentence_piece import (
    Pieces,
    own_token,
    parse_model,
    pieces_of,
    sentence_piece,
)
from model_server.text.vocabularies.vocabulary import AddedToken, Vocabulary
from model_server.text.vocabularies.word_piece import word_piece
from sax.errors import CheckpointError

# Finds and reads the vocabulary of a Hugging Face folder that has no tokenizer.json.
#
# Chooses the reader for each file name; `model_server.text.vocabularies` parses the contents.
#
# Pre-tokenizer for vocab.json, by `tokenizer_class`, or else by `model_type`.
_CUTTINGS: MappingProxyType[str, Cutting] = MappingProxyType(
    {
        "GPT2Tokenizer": GPT2,
        "CodeGenTokenizer": GPT2,
        "GPTNeoXTokenizer": GPT_NEOX,
        "Qwen2Tokenizer": QWEN2,
        "gpt2": GPT2,
        "gptj": GPT2,
        "gpt_neo": GPT2,
        "phi": GPT2,
        "gpt_neox": GPT_NEOX,
        "qwen2": QWEN2,
        "qwen2_moe": QWEN2,
        "qwen3": QWEN2,
        "qwen3_moe": QWEN2,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    tokenizer: dict[str, Any]  # tokenizer_config.json
    model: dict[str, Any]  # config.json
    added: tuple[AddedToken, ...]


_Reader = Callable[[Path, Settings], Vocabulary]


def read_vocabulary(
    folder: Path, settings: dict[str, Any], config: dict[str, Any]
) -> tuple[Path, Vocabulary]:
    """Return file and vocabulary; `settings` is tokenizer_config.json. Raises CheckpointError."""
    known = Settings(tokenizer=settings, model=config, added=_added_tokens(folder, settings))
    for pattern, reader in _READERS.items():
        if found := sorted(folder.glob(pattern)):
            return found[-1], _named(found[-1], reader, known)
    raise CheckpointError(
        f"{folder} holds no tokenizer.json and no other vocabulary; looked for "
        f"{', '.join(_READERS)}"
    )


def _named(path: Path, reader: _Reader, settings: Settings) -> Vocabulary:
    try:
        return reader(path, settings)
    except CheckpointError as exc:
        if str(path) in exc.text:
            raise
        raise CheckpointError(f"{path} cannot be loaded: {exc.text}") from exc


def _read_tekken(path: Path, settings: Settings) -> Vocabulary:
    return tekken(read_json(path))


def _read_model(path: Path, settings: Settings) -> Vocabulary:
    """Read SentencePiece's file, or tiktoken's, which may have the same name."""
    data = read_bytes(path)
    if is_tiktoken(data):
        return tiktoken(data, settings.model.get("model_type"), settings.added)
    model = parse_model(data)
    pieces = pieces_of(model, every_part_starts=settings.tokenizer.get("legacy") is not False)
    bos = own_token(model, "bos_id")
    adds_bos = settings.tokenizer.get("add_bos_token")
    return sentence_piece(
        pieces,
        _fitting(settings.added, pieces),
        bos=bos,
        eos=own_token(model, "eos_id"),
        adds_bos=bos is not None and adds_bos is not False,
        adds_eos=settings.tokenizer.get("add_eos_token") is True,
    )


def _read_tiktoken(path: Path, settings: Settings) -> Vocabulary:
    return tiktoken(read_bytes(path), settings.model.get("model_type"), settings.added)


def _read_vocab_json(path: Path, settings: Settings) -> Vocabulary:
    """Read GPT-2's two files: vocab.json with tokens and ids, and merges.txt."""
    vocab = read_json(path)
    if not all(type(token_id) is int and token_id >= 0 for token_id in vocab.values()):
        raise CheckpointError("not all of its tokens have an id")
    merges_path = path.with_name("merges.txt")
    merges = [
        line.split(" ")
        for line in read_text(merges_path).split("\n")
        if line and not line.startswith("#version")
    ]
    if wrong := next((pair for pair in merges if len(pair) != 2), None):
        raise CheckpointError(f"{merges_path} has a line that is not a pair: {' '.join(wrong)!r}")
    return byte_level(vocab, merges, _control_of(vocab, settings), _cutting(settings))


def _cutting(settings: Settings) -> Cutting:
    kind = str(settings.tokenizer.get("tokenizer_class", "")).removesuffix("Fast")
    name = kind if kind in _CUTTINGS else str(settings.model.get("model_type"))
    if name not in _CUTTINGS:
        raise CheckpointError(
            f"the pre-tokenizer of {name!r} models is not in this file; known are "
            f"{', '.join(_CUTTINGS)}. Save the tokenizer as tokenizer.json"
        )
    cutting = _CUTTINGS[name]
    return with_space_before(cutting) if settings.tokenizer.get("add_prefix_space") else cutting


def _control_of(vocab: dict[str, int], settings: Settings) -> list[AddedToken]:
    """Collect control, start and end tokens; older folders name the latter by id or not at all."""
    by_id = {token_id: text for text, token_id in vocab.items()}
    ends = [settings.model.get("bos_token_id"), settings.model.get("eos_token_id")]
    ends = [end for given in ends for end in (given if isinstance(given, list) else [given])]
    ends.append(vocab.get("<|endoftext|>"))
    tokens = {
        end: AddedToken(id=end, text=by_id[end], control=True) for end in ends if end in by_id
    }
    for token in settings.added:
        _check_text(token, by_id.get(token.id), vocab.get(token.text))
        tokens[token.id] = token
    return list(tokens.values())


def _read_vocab_text(path: Path, settings: Settings) -> Vocabulary:
    tokens = [line.rstrip("\r") for line in read_text(path).rstrip("\n").split("\n")]
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    for token in settings.added:
        text = tokens[token.id] if token.id < len(tokens) else None
        _check_text(token, text, ids.get(token.text))
    given = settings.tokenizer
    return word_piece(
        tokens,
        settings.added,
        lowercase=given.get("do_lower_case", True) is True,
        strip_accents=given.get("strip_accents"),
        cuts_chinese=given.get("tokenize_chinese_chars", True) is True,
    )


_READERS: MappingProxyType[str, _Reader] = MappingProxyType(
    {
        "tekken.json": _read_tekken,
        "tokenizer.model": _read_model,
        "spiece.model": _read_model,
        "sentencepiece.bpe.model": _read_model,
        "tokenizer.model.v*": _read_model,
        "*.tiktoken": _read_tiktoken,
        "tiktoken.model": _read_tiktoken,
        "vocab.json": _read_vocab_json,
        "vocab.txt": _read_vocab_text,
    }
)


def _fitting(added: Collection[AddedToken], pieces: Pieces) -> list[AddedToken]:
    """Merge added tokens with SentencePiece's own, which keep their matching rules."""
    ids = {text: token_id for token_id, text in enumerate(pieces.texts)}
    own = {token.id: token for token in pieces.own_tokens()}
    size = len(pieces.texts)
    for token in added:
        text = pieces.texts[token.id] if token.id < size else None
        _check_text(token, text, ids.get(token.text))
    after = sorted(token.id for token in added if token.id >= size)
    if after != list(range(size, size + len(after))):
        raise CheckpointError(f"the ids of its added tokens do not continue from {size}: {after}")
    return [_merged(token, own.get(token.id)) for token in added]


def _merged(token: AddedToken, own: AddedToken | None) -> AddedToken:
    if own is None:
        return token
    control = token.control or own.control
    return replace(token, control=control, normalized=own.normalized)


def _check_text(token: AddedToken, text: str | None, token_id: int | None) -> None:
    """Raise CheckpointError if an added token contradicts the vocabulary."""
    if text not in (None, token.text) or token_id not in (None, token.id):
        raise CheckpointError(
            f"the files beside it say that {token.text!r} has id {token.id}, but here "
            + (f"it has {token_id}" if text is None else f"that is {text!r}")
            + ": they belong to different models"
        )


def _added_tokens(folder: Path, settings: dict[str, Any]) -> tuple[AddedToken, ...]:
    """Read added tokens from tokenizer_config.json, or added_tokens.json in older folders."""
    path = folder / "tokenizer_config.json"
    listed = settings.get("added_tokens_decoder")
    if listed is None:
        path = folder / "added_tokens.json"
        control = _control_texts(folder, settings)
        listed = {
            token_id: {"content": text, "special": text in control}
            for text, token_id in read_json(path, missing={}).items()
        }
    try:
        return tuple(_added_token(int(i), entry) for i, entry in listed.items())
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise CheckpointError(f"{path} does not list its added tokens by id: {exc!r}") from exc


def _added_token(token_id: int, entry: dict[str, Any]) -> AddedToken:
    if token_id < 0 or not isinstance(entry["content"], str):
        raise ValueError(f"{token_id}: {entry['content']!r}")
    return AddedToken(
        id=token_id,
        text=entry["content"],
        control=entry.get("special") is True,
        strips_left=entry.get("lstrip") is True,
        strips_right=entry.get("rstrip") is True,
        whole_word=entry.get("single_word") is True,
    )


def _control_texts(folder: Path, settings: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    for source in (read_json(folder / "special_tokens_map.json", missing={}), settings):
        for key, given in source.items():
            if key.endswith("_token") or key.endswith("special_tokens"):
                for token in given if isinstance(given, list) else [given]:
                    text = token.get("content") if isinstance(token, dict) else token
                    found |= {text} if isinstance(text, str) else set()
    return found


_LAYERS_APART = "transformer_layer_config"  # of draft heads as the speculators library writes them


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises CheckpointError if it is missing, unclear or has no model_type."""
    path = folder / "config.json"
    config = read_json(path)
    if isinstance(inner := config.pop(_LAYERS_APART, None), dict):
        config = {**inner, **config}
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} has no model_type")
    # Newer files say dtype for torch_dtype, and rope_parameters for rope_theta and rope_scaling.
    settle_rope(config)
    spell_both(config)
    if "torch_dtype" not in config and "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    return config


def folder_tokenizer(folder: Path, config: dict[str, Any]) -> HfTokenizer:
    """Read the tokenizer; `config` is config.json. Raises CheckpointError, naming the file."""
    settings = _settings(folder)
    path = folder / "tokenizer.json"
    bos, eos = _bos(folder, settings, config), _eos(folder, settings, config)
    adds_bos = _flag(settings, "add_bos_token")
    if path.exists():
        serialized = read_text(path)
    else:
        path, vocabulary = read_vocabulary(folder, settings, config)
        serialized = vocabulary.serialized()
        bos = vocabulary.bos if bos is None else bos
        eos |= {vocabulary.eos} if vocabulary.eos is not None else set()
        adds_bos = vocabulary.adds_bos if adds_bos is None else adds_bos
    try:
        return HfTokenizer(serialized, bos=bos, eos=eos, adds_bos=adds_bos)
    except CheckpointError as exc:
        raise CheckpointError(f"{path} cannot be loaded: {exc.text}") from exc


def folder_chat_template(folder: Path, tokenizer: HfTokenizer) -> ChatTemplate | None:
    """Read the template; None if there is none. Raises CheckpointError, naming the file."""
    settings = _settings(folder)
    path, source, for_tools = _template_sources(folder, settings)
    if source is None:
        return None
    try:
        return ChatTemplate(
            source,
            _content(settings.get("bos_token")) or "",
            _content(settings.get("eos_token")) or "",
            tokenizer.control_tokens.texts,
            for_tools=for_tools,
        )
    except CheckpointError as exc:
        raise CheckpointError(f"{path} cannot be loaded: {exc.text}") from exc


def _settings(folder: Path) -> dict[str, Any]:
    """Return tokenizer_config.json with the texts that special_tokens_map.json adds.

    In folders of older transformers, which list no added tokens, the latter counts where both have
    a text.
    """
    settings = read_json(folder / "tokenizer_config.json", missing={})
    texts = read_json(folder / "special_tokens_map.json", missing={})
    texts = {key: text for key, text in texts.items() if _content(text) is not None}
    if "added_tokens_decoder" not in settings:
        return settings | texts
    return settings | {key: text for key, text in texts.items() if settings.get(key) is None}


def _flag(settings: dict[str, Any], key: str) -> bool | None:
    value = settings.get(key)
    return value if isinstance(value, bool) else None


def _bos(folder: Path, settings: dict[str, Any], config: dict[str, Any]) -> int | str | None:
    ids = (source.get("bos_token_id") for source in _with_ids(folder, config))
    known = next((token_id for token_id in ids if type(token_id) is int), None)
    return _content(settings.get("bos_token")) or known


def _eos(folder: Path, settings: dict[str, Any], config: dict[str, Any]) -> set[int | str]:
    """Collect the end tokens of all files: chat models end turns with several tokens."""
    found: set[int | str] = set()
    for source in _with_ids(folder, config):
        given = source.get("eos_token_id")
        found |= {i for i in (given if isinstance(given, list) else [given]) if type(i) is int}
    content = _content(settings.get("eos_token"))
    return found | ({content} if content else set())


def _with_ids(folder: Path, config: dict[str, Any]) -> list[Mapping[str, Any]]:
    """Return the files' objects that give token ids, and the text model's config in another."""
    inner = config.get("text_config")
    sources = [config, inner, read_json(folder / "generation_config.json", missing={})]
    return [source for source in sources if isinstance(source, Mapping)]


def _template_sources(folder: Path, settings: dict[str, Any]) -> tuple[Path, str | None, str]:
    """Return the file, the template, and the one for chats with tools, as transformers does."""
    path, own_file = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    named: dict[str, Any] = {"default": settings.get("chat_template")}
    if isinstance(listed := named["default"], list):
        every = [cast("dict[str, Any]", each) for each in listed if isinstance(each, dict)]
        named = {str(each.get("name")): each.get("template") for each in every}
    if own_file.exists():
        path, named = own_file, {"default": read_text(own_file)}
    elif named.get("default") is None:
        path = folder / "chat_template.json"
        named["default"] = read_json(path, missing={}).get("chat_template")
    beside = folder / "additional_chat_templates" / "tool_use.jinja"
    for_tools = read_text(beside) if beside.exists() else named.get("tool_use", "")
    source = named.get("default")
    if not isinstance(source, str | None) or not isinstance(for_tools, str):
        raise CheckpointError(f"{path}: chat_template is neither text nor a list with a default")
    return path, source, for_tools


def _content(token: Any) -> str | None:
    """Return a token's text: tokenizer_config.json has a str, or an object with `content`."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None
