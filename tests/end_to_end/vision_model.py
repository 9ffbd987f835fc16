"""A tiny random Gemma 3 with image input as a folder: weights, a tokenizer of bytes, a template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel

from tests.model_server.models.media.media_cases import write_media_case

CASE = "gemma3"
_CONTROL = {
    "<pad>": 0,
    "<eos>": 1,
    "<bos>": 2,
    "<start_of_image>": 262,
    "<end_of_image>": 263,
    "<image_soft_token>": 264,
    "<start_of_turn>": 265,
    "<end_of_turn>": 266,
}
_BYTES = 3  # id of the first byte
_UNUSED = range(259, 262)
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<start_of_turn>' + message['role'] + '\\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}"
    "{{ '<start_of_image>' }}{% else %}{{ item['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)


def vision_model(folder: Path) -> Path:
    """Write the folder."""
    write_media_case(CASE, folder)
    vocabulary = {char: _BYTES + n for n, char in enumerate(sorted(ByteLevel.alphabet()))}
    vocabulary |= _CONTROL | {f"<unused{n}>": n for n in _UNUSED}
    added = [
        {
            "id": id,
            "content": text,
            "special": True,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        }
        for text, id in _CONTROL.items()
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": _TEMPLATE}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
