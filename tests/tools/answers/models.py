"""Models of every kind in one cell, all in float32: published once, asked by every question."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image

from tests.demo_model import demo_model
from tests.end_to_end.cell import ROOT, Cell, local_plan
from tests.end_to_end.custom_modules import modules
from tests.end_to_end.hearing_model import hearing_model
from tests.end_to_end.passes_model import publish_passes
from tests.end_to_end.tool_template import TEMPLATE
from tests.end_to_end.vision_model import CASE, vision_model
from tests.golden.sound_folder import write_case as write_whisper
from tests.model_server.checkpoints.adapter_folder import write_demo_adapter
from tests.model_server.loading.passes.test_embed_loading import classifier
from tests.model_server.loading.vision.images import write_case as write_resnet
from tests.model_server.models.media.media_cases import images_of
from tests.model_server.tiny_bert import tiny_bert
from tests.processes import QUICK_COMPILER
from tests.tools.golden.sounds import CASES, sound_of

MODELS = (
    *("smollm2", "adapted", "passes", "embedder", "classifier"),
    *("seeing", "hearing", "ear", "pictures", "flowers", "nobody"),  # the last is not published
)
MINILM = ROOT / ".cache" / "models" / "all-MiniLM-L6-v2"
_F32 = {"DTYPE": "float32", "KV_CACHE_DTYPE": "float32"}
_DEMO: dict[str, Any] = {
    **_F32,
    **{"CHAT_TEMPLATE": TEMPLATE, "TOOL_PARSER": "hermes", "MAX_CONTEXT": 256},
    **{"MAX_ADAPTERS": 1, "MAX_ADAPTER_RANK": 2},
}
_SMALL = _F32 | {"MAX_CONTEXT": 128, "NUM_CACHE_SLOTS": 2}


@contextmanager
def running(folder: Path) -> Iterator[Cell]:
    """Run a cell with every model ready; `folder` gets its state, checkpoints and modules."""
    for name, text in modules().items():
        (folder / f"{name}.py").write_text(text)
    flags = ("--slots=8", "--max_context=256", *(f"--import={name}" for name in modules()))
    environ = {"PYTHONPATH": str(folder), "XLA_FLAGS": QUICK_COMPILER}
    with Cell(local_plan(folder / "cell", *flags), environ=environ) as cell:
        _publish(cell, folder)
        yield cell


def model_id(name: str) -> str:
    return f"/sax/test/{name}"


def _publish(cell: Cell, folder: Path) -> None:
    for name in ("bert", "classes", "passes"):
        (folder / name).mkdir()
    publish_passes(cell, folder / "passes")
    bert = MINILM if MINILM.is_dir() else tiny_bert(folder / "bert")
    adapter = write_demo_adapter(folder / "adapter", demo_model(), seed=0)
    short = {"DTYPE": "float32", "MAX_CONTEXT": 32}
    rows: tuple[tuple[str, str, Path | str, dict[str, Any]], ...] = (
        ("smollm2", "llama", demo_model(), _DEMO),
        ("adapted", "lora", adapter, {"BASE": model_id("smollm2")}),
        ("embedder", "auto", bert, short),
        ("classifier", "auto", classifier(folder / "classes", "bert"), short),
        ("seeing", "auto", vision_model(folder / "seeing"), _SMALL),
        ("hearing", "auto", hearing_model(folder / "hearing"), _SMALL),
        ("ear", "auto", write_whisper("whisper", folder / "whisper"), {"DTYPE": "float32"}),
        ("pictures", "auto", write_resnet("resnet", folder / "resnet"), {}),
        ("flowers", "flowers.Classifier", "None", {}),
    )
    for name, path, checkpoint, overrides in rows:
        cell.publish(str(checkpoint), model=model_id(name), model_path=path, overrides=overrides)


def picture(number: int = 0) -> bytes:
    """A PNG file, of the size that the seeing model was made for."""
    file = io.BytesIO()
    Image.fromarray(images_of(CASE)[number]).save(file, "PNG")
    return file.getvalue()


def samples() -> np.ndarray:
    """Sound for the hearing model, f32[n] at 16 kHz."""
    return images_of("qwen2_audio")[0]


def wav(sound: np.ndarray | None = None) -> bytes:
    """A WAV file of this sound, or of the one that Whisper's golden case hears."""
    file = io.BytesIO()
    said = sound_of("whisper", CASES["whisper"][1]) if sound is None else sound
    soundfile.write(file, said, 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()
