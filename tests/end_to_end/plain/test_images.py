"""Images through a cell of real processes, by Saxml's Python calls and by its command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sax
from sax.errors import InvalidRequest, UnsupportedParameter
from tests.end_to_end.cell import ROOT, Cell
from tests.model_server.loading.vision.test_vision_loading import logprobs, write_case
from tests.tools.golden.images import HERE

TINY, IMAGENET = "/sax/test/tiny", "/sax/test/resnet50"
PATH = "saxml.server.pax.vision.params.resnet.ImageNetResNet50"
CASE = "resnet"
LABELS = ("ant", "bee", "cat", "dog", "eel")


@pytest.fixture(scope="module")
def tiny_cell(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """The cell with the golden ResNet."""
    folder = tmp_path_factory.mktemp("images") / CASE
    write_case(CASE, folder)
    cell.publish(str(folder), model=TINY, model_path="auto")
    yield cell
    cell.sax("unpublish", TINY)


@pytest.fixture
def tiny(tiny_cell: Cell, saxml_of: Callable[[Cell], None]) -> sax.Model:
    saxml_of(tiny_cell)
    return sax.Model(TINY)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    return dict(np.load(HERE / CASE / "golden.npz"))


def encoded(image: np.ndarray, kind: str = "PNG", **options: int) -> bytes:
    file = BytesIO()
    Image.fromarray(image).save(file, kind, **options)
    return file.getvalue()


def saxutil(cell: Cell, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sax.cli.saxutil", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SAX_ADMIN": cell.plan.admin_address},
    )


def test_saxmls_calls_classify_and_embed_as_the_reference(
    tiny: sax.Model, golden: dict[str, np.ndarray]
) -> None:
    for index in (0, 1):
        image = encoded(golden[f"image_{index}"])
        scores = logprobs(golden["logits"][index])
        wanted = sorted(zip(LABELS, scores, strict=True), key=lambda each: -each[1])
        found = tiny.VM().Classify(image)
        assert [label for label, _ in found] == [label for label, _ in wanted]
        assert [score for _, score in found] == pytest.approx(
            [score for _, score in wanted], abs=1e-4
        )
        assert tiny.VM().Embed(image) == pytest.approx(golden["vectors"][index], abs=1e-4)


def test_photographs_are_decoded_and_other_files_refused(tiny: sax.Model) -> None:
    image = np.full((300, 400, 3), 128, np.uint8)
    plain = tiny.VM().Classify(encoded(image))
    for kind in ("JPEG", "WEBP"):
        (first, *_) = tiny.VM().Classify(encoded(image, kind, quality=100))
        assert first[0] == plain[0][0]
    for bad, words in ((b"GIF89a", "is not a JPEG, PNG"), (encoded(image)[:-99], "is damaged")):
        with pytest.raises(InvalidRequest, match=words):
            tiny.VM().Classify(bad)


def test_other_methods_are_refused_with_those_that_are_served(tiny: sax.Model) -> None:
    with pytest.raises(UnsupportedParameter, match=r"vm\.detect; it serves vm\.classify, vm\.emb"):
        tiny.VM().Detect(b"x", ["cat"])
    with pytest.raises(UnsupportedParameter, match=r"does not serve vm\.generate"):
        tiny.VM().TextToImage("a cat")
    with pytest.raises(InvalidRequest, match="is a model of images and does not serve lm"):
        tiny.LM().Score("a", ["b"])


def test_the_command_line_classifies_and_embeds(
    tiny_cell: Cell, tmp_path: Path, golden: dict[str, np.ndarray]
) -> None:
    check_command_line(tiny_cell, TINY, tmp_path, golden, width=len(golden["vectors"][0]))


@pytest.mark.nightly
def test_the_command_line_classifies_and_embeds_with_saxmls_class(
    cell: Cell, tmp_path: Path, golden: dict[str, np.ndarray]
) -> None:
    cell.publish("None", model=IMAGENET, model_path=PATH)
    try:
        check_command_line(cell, IMAGENET, tmp_path, golden, width=2048)
    finally:
        cell.sax("unpublish", IMAGENET)


def check_command_line(
    cell: Cell, model: str, folder: Path, golden: dict[str, np.ndarray], width: int
) -> None:
    file = folder / "image.jpg"
    file.write_bytes(encoded(golden["image_0"], "JPEG"))
    told = saxutil(cell, "vm.classify", model, file)
    assert told.returncode == 0, told.stderr
    rows = [line for line in told.stdout.splitlines() if "|" in line]
    assert len(rows) == 6, "a heading and the five likeliest"
    told = saxutil(cell, "vm.embed", model, file)
    assert told.returncode == 0, told.stderr
    assert told.stdout.count(",") == width - 1
    told = saxutil(cell, "vm.classify", model, ROOT / "README.md")
    assert told.returncode != 0
    assert "the image is not a JPEG, PNG or WebP file" in told.stderr
    assert "vm.classify" in str(cell.listed(model))
