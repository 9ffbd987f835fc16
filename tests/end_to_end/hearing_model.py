"""A tiny random Qwen2-Audio as a folder: weights, a tokenizer of bytes, a template."""

from __future__ import annotations

import json
from pathlib import Path

from tests.model_server.loading.media.image_folder import folder_of
from tests.tools.golden.media.qwen_audio import BEGIN, END, SOFT

CASE = "qwen2_audio"
CONTROL = {SOFT: "<|AUDIO|>", BEGIN: "<|audio_bos|>", END: "<|audio_eos|>"}
# Looks for keys of parts, as the published model's template does.
TEMPLATE = (
    "{% set sounds = namespace(value=0) %}{% for message in messages %}"
    "{{ message['role'] + ': ' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if 'audio' in part %}"
    "{% set sounds.value = sounds.value + 1 %}"
    "{{ sounds.value ~ ': <|audio_bos|><|AUDIO|><|audio_eos|>\\n' }}"
    "{% elif 'text' in part %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def hearing_model(folder: Path) -> Path:
    """Write the folder."""
    folder_of(folder, CONTROL, CASE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder
