"""Makes tests/golden/media/*: random models with image or audio input, and the reference's vectors.

Run by hand, in an environment with torch, transformers and Pillow, from the repository root:

    python -m tests.golden.make_media [NAME ...]

Each folder holds config.json, preprocessor_config.json, tensors.json (name in published checkpoints
-> shape) and golden.npz: images image_0, image_1, ... u8[h, w, 3] as they are sent, or sounds
sound_0, ... f32[n], samples at 16 kHz; of each what the processor makes of it, pieces_0, ...; its
vectors rows_0, ... f32[rows, W]; the prompt i64[S] with all of them, and its logits f32[S, V]; how
they were made. Weights are not stored: they follow from the names (see
`media_maker.case.tensor_of`).
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.golden.media_maker.case import MediaCase, Seen, Shapes, tensor_of

HERE = Path(__file__).parent / "media"
LEAST_CHANGE = 1e-2  # of the logits when a feature is switched off, relative to the largest


def all_cases() -> list[MediaCase]:
    """Return the CASES of every module below media_maker."""
    place = Path(__file__).parent / "media_maker"
    paths = sorted(path.relative_to(place).with_suffix("") for path in place.rglob("*.py"))
    names = [".".join(("tests", "golden", place.name, *path.parts)) for path in paths]
    return [case for name in names for case in getattr(importlib.import_module(name), "CASES", [])]


def make(case: MediaCase) -> None:
    """Write one folder. Raises AssertionError for a case that proves too little."""
    shapes = _tensors_of(case)
    images, sounds = case.pictures(), case.noises()
    seen = case.see(case, images or sounds)
    rows, logits = _run(case, case.config, shapes, seen)
    for feature, changes in case.without.items():
        _, other = _run(case, case.config | dict(changes), shapes, seen)
        changed = np.abs(other - logits).max() / np.abs(logits).max()
        assert changed > LEAST_CHANGE, f"{case.name}: {feature} changes the logits by {changed}"
    folder = HERE / case.name
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", case.config)
    _write_json(folder / "preprocessor_config.json", case.preprocessor)
    lines = [f"  {json.dumps(name)}: {json.dumps(shapes[name])}" for name in sorted(shapes)]
    (folder / "tensors.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    held: dict[str, Any] = {f"image_{n}": each for n, each in enumerate(images)}
    held |= {f"sound_{n}": each for n, each in enumerate(sounds)}
    held |= {f"pieces_{n}": each for n, each in enumerate(seen.pieces)}
    held |= {f"rows_{n}": each for n, each in enumerate(rows)}
    np.savez_compressed(
        folder / "golden.npz",
        how=np.asarray(_how(case)),
        prompt=np.asarray(seen.prompt, np.int64),
        logits=logits,
        **held,
    )


def _how(case: MediaCase) -> str:
    return (
        f"python -m tests.golden.make_media {case.name}; torch {torch.__version__} (CPU), "
        f"transformers {transformers.__version__}, {case.config['architectures'][0]}, float32, "
        "eager attention, weights from tensor_of"
    )


def _tensors_of(case: MediaCase) -> Shapes:
    """The tensors of a checkpoint, as published ones name them."""
    with tempfile.TemporaryDirectory() as folder:
        _write_json(Path(folder) / "config.json", case.config)
        config = transformers.AutoConfig.from_pretrained(folder)
        model = _model_class(case)._from_config(config)
        model.save_pretrained(folder)
        with safe_open(Path(folder) / "model.safetensors", "np") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in sorted(file.keys())}
    return case.stored({case.published(name): shape for name, shape in shapes.items()})


def _run(
    case: MediaCase, config: Mapping[str, Any], shapes: Shapes, seen: Seen
) -> tuple[list[np.ndarray], np.ndarray]:
    """The vectors of each image, and the logits of the prompt with all of them."""
    model = _load(case, config, shapes)
    with torch.no_grad():
        rows = [each.numpy() for each in case.vectors(model, seen)]
        out = model(input_ids=torch.tensor([seen.prompt]), **seen.inputs)
    return rows, out.logits[0].numpy()


def _load(case: MediaCase, config: Mapping[str, Any], shapes: Shapes) -> Any:
    """The model over its random weights. Raises AssertionError unless every tensor is used."""
    tensors = {name: tensor_of(name, shape) for name, shape in shapes.items()}
    with tempfile.TemporaryDirectory() as folder:
        _write_json(Path(folder) / "config.json", config)
        save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
        model, info = _model_class(case).from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    for key in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        assert not info[key], f"{case.name}: {info}"
    return model.eval()


def _model_class(case: MediaCase) -> Any:
    return getattr(transformers, case.config["architectures"][0])


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    wanted, cases = set(sys.argv[1:]), all_cases()
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), "two cases have one name"
    assert wanted <= set(names), f"there is no case {wanted - set(names)}"
    for case in cases:
        if not wanted or case.name in wanted:
            make(case)
            sys.stdout.write(f"{case.name}\n")


if __name__ == "__main__":
    main()
