"""A tiny random model that hears as a folder: weights, a tokenizer of bytes, a template."""

from __future__ import annotations

import json
from pathlib import Path

from tests.model_server.loading.media.image_folder import GEMMA_3N, GEMMA_4, folder_of
from tests.tools.golden.media.sounds import BEGIN, END, SOFT

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
VOXTRAL = "voxtral"
VOXTRALS = {SOFT: "[AUDIO]", BEGIN: "[BEGIN_AUDIO]", END: "[/INST]"}
# As in docs/how_to/audio.md.
VOXTRAL_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ '[INST]' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}{{ '[BEGIN_AUDIO][AUDIO]' }}{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}{{ '[/INST]' }}{% endif %}{% endfor %}"
)

GEMMAS = {"gemma3n": GEMMA_3N, "gemma4": GEMMA_4}


def _gemma_template(sound: str, image: str) -> str:
    """As the published ones write a sound or image: its one token, for the processor to expand."""
    return (
        "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' }}"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'audio' %}{{ '" + sound + "' }}"
        "{% elif part['type'] == 'image' %}{{ '" + image + "' }}"
        "{% elif part['type'] == 'text' %}{{ part['text'] | trim }}{% endif %}{% endfor %}"
        "{% endfor %}{{ 'model: ' }}"
    )


def hearing_model(folder: Path, case: str = CASE) -> Path:
    """Write the folder."""
    known = {CASE: (CONTROL, TEMPLATE), VOXTRAL: (VOXTRALS, VOXTRAL_TEMPLATE)}
    for name, tokens in GEMMAS.items():
        _, sound, _, _, image, *_ = tokens.values()
        known[name] = tokens, _gemma_template(sound, image)
    control, template = known[case]
    folder_of(folder, control, case)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder
