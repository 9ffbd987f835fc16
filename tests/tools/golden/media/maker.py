"""Small random models with image or audio input, and transformers' vectors and logits.

A folder holds config.json and the files of processors, which are given; tensors.json (name in
published checkpoints -> shape) and golden.npz, which are made: images image_0, image_1, ...
u8[h, w, 3] as they are sent, or sounds sound_0, ... f32[n], samples at 16 kHz, or frames of videos
video_0, ... u8[T, h, w, 3], RATE of them a second, and if they are mixed their order, in which with
`heard` a sound right behind a video is the video's own; of each what
the processor makes of it, pieces_0, ...; its vectors rows_0, ... f32[rows, W]; the prompt i64[S]
with all of them, and its logits f32[S, V]; how they were made. Where the tokens of a prompt see
each other, also the greedy answer i64[n], and logits of both, f32[S + n, V]. Weights are not
stored: they follow from the names (see case.tensor_of).
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.tools.golden import common
from tests.tools.golden.common import Shapes, changed
from tests.tools.golden.media import (
    gemma3,
    llama4,
    llava,
    omni,
    phi4,
    pixtral,
    qwen,
    sounds,
    towers,
)
from tests.tools.golden.media.case import MediaCase, Seen, tensor_of

_TABLES = (gemma3, llama4, llava, omni, phi4, pixtral, qwen, sounds, towers)
ROWS = {case.name: case for table in _TABLES for case in table.CASES}
CASES = [*ROWS]


def make(name: str, into: Path) -> None:
    """Write one folder. Raises AssertionError for a case that proves too little."""
    case = ROWS[name]
    config = case.config.get(case.part, case.config)
    kind = case.model or config["architectures"][0]
    media = case.media()
    seen = case.reader.see(case, [*media.values()])
    every = common.saved_shapes(kind, config)
    saved = {key: shape for key, shape in every.items() if not key.endswith(case.left_out)}
    shapes = case.stored({case.published(key): shape for key, shape in saved.items()})
    prompt = case.prompt(seen.rows)
    answer, chosen = _answered(case, config, shapes, seen, prompt)
    asked, prompt = prompt, [*prompt, *answer]
    rows, logits = _run(case, config, shapes, seen, prompt, len(asked))
    if answer:
        np.testing.assert_allclose(logits[len(asked) - 1 : -1], chosen, atol=1e-4, err_msg=name)
        _, other = _run(case, config, shapes, seen, prompt, 0)
        common.assert_changes(f"{name}: sight", logits, other)
    for feature, changes in case.without.items():
        _, other = _run(case, changed(config, changes), shapes, seen, prompt, len(asked))
        common.assert_changes(f"{name}: {feature}", logits, other)
    common.write_json(into / name / "config.json", case.config)
    for file, content in case.processors.items():
        common.write_json(into / name / file, content)
    adapted = _adapted(case, config, shapes, seen, prompt, into) if case.adapter else {}
    others = {**seen.others, **adapted, **({"order": np.asarray(case.order)} if case.order else {})}
    others |= {"heard": np.asarray(True)} if case.heard else {}
    others |= {"answer": np.asarray(answer, np.int64)} if answer else {}
    told = f"{kind}, float32, eager attention, weights from tensor_of"
    common.write_case(
        into / name,
        shapes,
        common.how("media", name, told),
        prompt=np.asarray(asked, np.int64),
        logits=logits,
        **media,
        **others,
        **{f"pieces_{n}": each for n, each in enumerate(seen.pieces)},
        **{f"rows_{n}": each for n, each in enumerate(rows)},
    )


def _adapted(
    case: MediaCase,
    config: Mapping[str, Any],
    shapes: Shapes,
    seen: Seen,
    prompt: Sequence[int],
    into: Path,
) -> dict[str, np.ndarray]:
    """The prompt's logits with an adapter, which is written as adapter.json: config and shapes."""
    import peft
    import torch

    kind = case.model or config["architectures"][0]
    model = common.loaded(kind, config, {name: tensor_of(name, shapes[name]) for name in shapes})
    with tempfile.TemporaryDirectory() as folder:
        asked = peft.LoraConfig(r=3, lora_alpha=7, task_type="CAUSAL_LM", **case.adapter)
        peft.get_peft_model(model, asked).save_pretrained(folder)
        stored = Path(folder) / "adapter_model.safetensors"
        made = {name: value.shape for name, value in sorted(load_file(stored).items())}
        save_file({name: tensor_of(name, shape) for name, shape in made.items()}, stored)
        written = common.read_json(Path(folder) / "adapter_config.json")
        model = common.loaded(
            kind, config, {name: tensor_of(name, shapes[name]) for name in shapes}
        )
        model.load_adapter(folder)
    with torch.no_grad():
        out = model(input_ids=torch.tensor([prompt]), **seen.inputs).logits[0].numpy()
    written["base_model_name_or_path"] = None
    settings = {key: value for key, value in written.items() if value is not None}
    parts = {"config": settings, "tensors": {name: list(shape) for name, shape in made.items()}}
    (into / case.name).mkdir(parents=True, exist_ok=True)
    (into / case.name / "adapter.json").write_text(common.lines(parts))
    return {"adapted_logits": out}


def _answered(
    case: MediaCase, config: Mapping[str, Any], shapes: Shapes, seen: Seen, prompt: Sequence[int]
) -> tuple[list[int], np.ndarray]:
    """The answer that transformers generates, and the logits f32[n, V] that it is chosen from."""
    import torch

    if case.reader.answers is None:
        return [], np.empty(0)
    argument, count = case.reader.answers
    model = _model(case, config, shapes)
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        made = model.generate(
            input_ids=torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            **{argument: torch.zeros(1, len(prompt), dtype=torch.long)},
            **seen.inputs,
        )
    return made.sequences[0, len(prompt) :].tolist(), torch.cat(made.logits).numpy()


def _model(case: MediaCase, config: Mapping[str, Any], shapes: Shapes) -> Any:
    tensors = {name: tensor_of(name, shape) for name, shape in shapes.items()}
    kind = case.model or config["architectures"][0]
    return common.loaded(kind, config, tensors, computed=case.left_out)


def _run(
    case: MediaCase,
    config: Mapping[str, Any],
    shapes: Shapes,
    seen: Seen,
    prompt: Sequence[int],
    asked: int,
) -> tuple[list[np.ndarray], np.ndarray]:
    """The vectors of each image, and the logits of the prompt with all of them.

    asked: tokens of it that are no answer.
    """
    import torch

    model = _model(case, config, shapes)
    inputs = dict(seen.inputs)
    if case.reader.kinds:
        argument, token = case.reader.kinds
        marks = [case.reader.kind * (each == token) for each in prompt]
        inputs[argument] = torch.tensor([marks])
    if case.reader.answers:
        marks = [int(place >= asked) for place in range(len(prompt))]
        inputs[case.reader.answers[0]] = torch.tensor([marks])
    if case.reader.masked:
        inputs["attention_mask"] = torch.ones(1, len(prompt), dtype=torch.long)
    with torch.no_grad():
        rows = [each.numpy() for each in case.reader.vectors(model, seen, prompt)]
        out = model(input_ids=torch.tensor([prompt]), **inputs)
    return rows, out.logits[0].numpy()
