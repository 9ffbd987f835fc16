"""Reads config.json, tokenizer and chat template of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from model_server.checkpoints.huggingface.folder_vocabulary import read_vocabulary
from model_server.checkpoints.huggingface.rope_settings import settle_rope, spell_both
from model_server.checkpoints.json_file import read_json, read_text
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises CheckpointError if it is missing, unclear or has no model_type."""
    path = folder / "config.json"
    config = read_json(path)
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
