"""Small random Whisper models, and what transformers computes of sounds with them.

A folder holds config.json, which is given; tensors.json (name -> shape) and golden.npz, which are
made: of the sound that follows from the case's name the features of the first window,
f32[frames, bins], and of the whole, every 16th frame; the encoder's states of the first window,
f32[S, D], thinned; tokens and their logits, teacher forced; the language that is detected; the
segments of the whole sound, decoded greedily window by window, with and without the text before.
Weights follow from the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.random_tensor import random_tensor, uniform
from tests.golden.sound_tokenizer import IDS, TIMESTAMPS, generation_config
from tests.tools.golden import common

HERE = common.GOLDEN / "sounds"
RATE = 16_000
# Name -> config.json and seconds of sound.
CASES: dict[str, tuple[dict[str, Any], float]] = {
    name: (common.read_json(HERE / name / "config.json"), seconds)
    for name, seconds in (
        ("whisper", 4.3),
        ("whisper_english", 2.77),
        ("whisper_full_window", 12.0),
    )
}


def is_multilingual(name: str) -> bool:
    return "english" not in name


def sound_of(name: str, seconds: float) -> np.ndarray:
    """f32[N] at 16 kHz: tones that come and go, and some noise."""
    count = int(seconds * RATE)
    parts = uniform(f"sound of {name}", 24)
    t = np.arange(count) / RATE
    tones = [
        np.sin(2 * np.pi * (80 + 3000 * a * a) * t) * np.maximum(0, np.sin(9 * b * t + 7 * c))
        for a, b, c in parts.reshape(8, 3)
    ]
    noise = uniform(f"noise of {name}", count) - 0.5
    return (np.sum(tones, 0) * 0.1 + noise * 0.02).astype(np.float32)


def tensor_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight by its name: kernels of convolutions are drawn as the matrices that they are."""
    flat = random_tensor(name, (shape[0], int(np.prod(shape[1:])))) if len(shape) > 1 else None
    drawn = random_tensor(name, shape) if flat is None else flat.reshape(shape)
    return drawn - 1 if name.endswith(".bias") else drawn  # around zero


def teacher_tokens(name: str, config: Mapping[str, Any]) -> np.ndarray:
    """i64[T]: a prompt and random tokens."""
    drawn = uniform(f"tokens of {name}", 20) * (TIMESTAMPS + 20)
    return np.asarray([IDS["<|startoftranscript|>"], *drawn.astype(np.int64)])


def thinned(rows: np.ndarray) -> np.ndarray:
    """Every row of a few, every 20th of many."""
    return rows if len(rows) <= 200 else rows[::20]


def make(name: str, into: Path) -> None:
    import torch
    import transformers

    config, seconds = CASES[name]
    read = transformers.WhisperConfig.from_dict(dict(config))
    model = transformers.WhisperForConditionalGeneration(read).eval()
    said = generation_config(multilingual=is_multilingual(name))
    model.generation_config = transformers.GenerationConfig.from_dict(said)
    state = model.state_dict()
    shapes = {key: tuple(state[key].shape) for key in state if key != "proj_out.weight"}
    drawn = {key: torch.from_numpy(tensor_of(key, shape)) for key, shape in shapes.items()}
    model.load_state_dict(drawn, strict=False)
    model.tie_weights()
    sound, frames = sound_of(name, seconds), 2 * config["max_source_positions"]
    extract = transformers.WhisperFeatureExtractor(feature_size=config["num_mel_bins"])
    first = extract(
        sound[: frames * 160], sampling_rate=RATE, max_length=frames * 160, return_tensors="pt"
    ).input_features
    longer = max(len(sound), frames * 160)
    whole = extract(
        sound, sampling_rate=RATE, max_length=longer, truncation=False, return_tensors="pt"
    ).input_features
    tokens = torch.from_numpy(teacher_tokens(name, config))[None]
    with torch.no_grad():
        states = model.model.encoder(first).last_hidden_state
        logits = model(input_features=first, decoder_input_ids=tokens).logits
    found = {
        f"segments_{word}": _segments(model, whole, config, conditioned)
        for word, conditioned in (("alone", False), ("conditioned", True))
    }
    if is_multilingual(name):
        found["language"] = model.detect_language(whole[:, :, :frames]).numpy()
    common.write_json(into / name / "config.json", config)
    common.write_case(
        into / name,
        shapes,
        common.how("sounds", name, "float32"),
        features=thinned(first[0].numpy().T),
        whole=whole[0].numpy().T[::16],
        states=thinned(states[0].numpy()),
        logits=logits[0].numpy(),
        **found,
    )


def _segments(model: Any, features: Any, config: Mapping[str, Any], conditioned: bool) -> Any:
    """f64[N, 2 + tokens]: start, end, tokens; -1 after the last token."""
    multilingual = model.generation_config.is_multilingual
    made = model.generate(
        features,
        return_timestamps=True,
        return_segments=True,
        condition_on_prev_tokens=conditioned,
        max_new_tokens=config["max_target_positions"] // 2 - 4,
        temperature=0.0,
        **({"language": "de", "task": "translate"} if multilingual else {}),
    )
    rows = [
        [float(each["start"]), float(each["end"]), *each["tokens"].tolist()]
        for each in made["segments"][0]
    ]
    width = max(map(len, rows))
    return np.asarray([[*row, *[-1.0] * (width - len(row))] for row in rows])
