"""Small random VITS models, and the sounds that transformers makes of texts with them.

A folder holds config.json, vocab.json and tokenizer_config.json, which are given; texts.json
(texts, many of them hostile, and their tokens by `VitsTokenizer`), tensors.json (name -> shape) and
golden.npz, which are made: the tokens of the first text, i64[T]; of each speaker that is asked,
noise for durations f32[2, T], the encoder's states f32[T, D], log frames f32[T], noise for frames
f32[F, C], latent frames f32[F, C] and samples f32[N]. The noise is what transformers drew, so that
another program can be given the same. Weights follow from the names.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden.random_tensor import random_tensor
from tests.tools.golden import common

HERE = common.GOLDEN / "voices"
# Name -> speakers that are asked.
CASES: dict[str, tuple[int | None, ...]] = {
    "vits": (None,),
    "vits_speakers": (0, 2),
    "vits_plain_durations": (1,),
}
TEXTS = (
    "the cat sat on it",
    "The CAT's Hat, 42! okay",
    "",
    "  a  b  ",
    "___",
    "a_b__c_",
    "_k_",
    "<unk>",
    "a<pad>b<unk>_c<pa d>",
    "?!...",
    "\u021b \u0163 \u0130stanbul STRASSE \u00df \u1e9e",
    "\u0441\u043b\u043e\u0432\u043e \U0001f600 x",
    "tab\tline\nend",
    "chch CH ch c h",
    "\x00a\x7f",
)


def tensor_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A weight by its name: kernels are drawn as the matrices that they are."""
    flat = random_tensor(name, (shape[0], int(np.prod(shape[1:])))) if len(shape) > 1 else None
    drawn = random_tensor(name, shape) if flat is None else flat.reshape(shape)
    if name.endswith("original0"):  # lengths of weight normalisation
        return np.abs(drawn) + np.float32(0.5)
    drawn = drawn - 1 if name.endswith("bias") else drawn  # around zero
    if name == "decoder.conv_post.weight":
        return drawn * np.float32(0.1)  # else most samples are cut off at 1
    # Tokens last some frames each, not none and not thousands.
    if name.startswith("duration_predictor.flows.0."):
        return drawn * np.float32(0.2) + np.float32(1.0 if name.endswith("scale") else -2.5)
    if name.startswith("duration_predictor.proj."):
        return drawn * np.float32(0.3) + np.float32(name.endswith("bias"))
    return drawn


@contextmanager
def recorded() -> Iterator[list[np.ndarray]]:
    """Yield what torch draws from normal distributions meanwhile."""
    import torch

    drawn: list[np.ndarray] = []
    originals = {name: getattr(torch, name) for name in ("randn", "randn_like")}

    def recording(name: str) -> Any:
        def draw(*given: Any, **options: Any) -> Any:
            made = originals[name](*given, **options)
            drawn.append(made.numpy().copy())
            return made

        return draw

    for name in originals:
        setattr(torch, name, recording(name))
    try:
        yield drawn
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)


def make(name: str, into: Path) -> None:
    import torch
    import transformers

    config = common.read_json(HERE / name / "config.json")
    into.joinpath(name).mkdir(parents=True, exist_ok=True)
    for given in ("vocab.json", "tokenizer_config.json"):
        if into != HERE:
            shutil.copy(HERE / name / given, into / name / given)
    tokenizer = transformers.VitsTokenizer.from_pretrained(HERE / name)
    texts = [[text, tokenizer(text)["input_ids"]] for text in TEXTS]
    lines = ",\n".join(f" {json.dumps(each)}" for each in texts)
    (into / name / "texts.json").write_text(f"[\n{lines}\n]\n")

    shapes = common.saved_shapes("VitsModel", config)
    tensors = {key: tensor_of(key, shape) for key, shape in shapes.items()}
    model = common.loaded("VitsModel", config, tensors)
    tokens = torch.tensor(texts[0][1])[None]
    arrays: dict[str, np.ndarray] = {"tokens": tokens[0].numpy()}
    for speaker in CASES[name]:
        torch.manual_seed(11 if speaker is None else speaker)
        arrays |= {f"{key}_{speaker}": value for key, value in _of(model, tokens, speaker).items()}
    common.write_json(into / name / "config.json", config)
    how = common.how("voices", name, "float32")
    common.write_case(into / name, shapes, how, **arrays)


def _of(model: Any, tokens: Any, speaker: int | None) -> dict[str, np.ndarray]:
    import torch

    logs: list[Any] = []
    hook = model.duration_predictor.register_forward_hook(lambda _, __, out: logs.append(out))
    with torch.no_grad(), recorded() as drawn:
        made = model(tokens, speaker_id=speaker)
        states = model.text_encoder(tokens, torch.ones(*tokens.shape, 1)).last_hidden_state
    hook.remove()
    log_frames = logs[0][0, 0].numpy()
    frames = np.exp(log_frames) / model.config.speaking_rate
    assert np.abs(frames - np.round(frames)).min() > 1e-3, "frames that rounding may change"
    assert np.isfinite(frames).all(), frames
    assert np.ceil(frames).max() < 60, frames
    stochastic = {"duration_noise": drawn[0][0]} if len(drawn) == 2 else {}
    return {
        **stochastic,
        "states": states[0].numpy(),
        "log_frames": log_frames,
        "noise": drawn[-1][0].T,
        "latents": made.spectrogram[0].numpy().T,
        "samples": made.waveform[0].numpy(),
    }
