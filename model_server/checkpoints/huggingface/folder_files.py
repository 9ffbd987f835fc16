"""Reads config.json, tokenizer and chat template of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from model_server.checkpoints.huggingface.folder_vocabulary import read_vocabulary
from model_server.checkpoints.json_file import read_json, read_text
from model_server.text.chat_template import ChatTemplate
from model_server.text.tokenizer import HfTokenizer
from sax.errors import CheckpointError


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json. Raises CheckpointError if it is missing or has no model_type."""
    path = folder / "config.json"
    config = read_json(path)
    if not isinstance(config.get("model_type"), str):
        raise CheckpointError(f"{path} has no model_type")
    # Newer files say dtype for torch_dtype, and rope_parameters for rope_theta and rope_scaling.
    if "torch_dtype" not in config and "dtype" in config:
        config["torch_dtype"] = config["dtype"]
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" not in config:
        config["rope_theta"] = rope.get("rope_theta", 10000.0)
        scaled = rope.get("rope_type", "default") != "default"
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        config["rope_scaling"] = rest if scaled else None
    return config


def folder_tokenizer(folder: Path, config: dict[str, Any]) -> HfTokenizer:
    """Read the tokenizer; `config` is config.json. Raises CheckpointError, naming the file."""
    settings = _settings(folder)
    path = folder / "tokenizer.json"
    bos, eos = _bos(settings, config), _eos(folder, settings, config)
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
    return read_json(folder / "tokenizer_config.json", missing={})


def _flag(settings: dict[str, Any], key: str) -> bool | None:
    value = settings.get(key)
    return value if isinstance(value, bool) else None


def _bos(settings: dict[str, Any], config: dict[str, Any]) -> int | str | None:
    given = _content(settings.get("bos_token")) or config.get("bos_token_id")
    return given if isinstance(given, int | str) else None


def _eos(folder: Path, settings: dict[str, Any], config: dict[str, Any]) -> set[int | str]:
    """Collect the end tokens of all files: chat models end turns with several tokens."""
    found: set[int | str] = set()
    for source in (read_json(folder / "generation_config.json", missing={}), config):
        given = source.get("eos_token_id")
        found |= {i for i in (given if isinstance(given, list) else [given]) if type(i) is int}
    content = _content(settings.get("eos_token"))
    return found | ({content} if content else set())


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
