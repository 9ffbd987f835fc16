"""Adapters beside their base in one engine, quantised or not, against the base with the adapter
merged by numpy.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file, save_file

from model_server.config import ModelServerConfig
from model_server.engine.engine import EngineRequest
from model_server.loading.loaded import Loaded, LoadedAdapter
from model_server.loading.loader import ModelLoader, make_loader
from model_server.plan.checkpoint.convert import convert
from sax.errors import CheckpointError, InvalidRequest, LoadFailed
from tests.model_server.checkpoints.adapter_folder import ATTENTION, merged, write_adapter
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.asker import CONFIG, GREEDY, PROMPT, TOKENS, Asker, adapter_spec
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.loading.media.image_folder import folder_of
from tests.model_server.loading.media.image_requests import answered, request_of
from tests.model_server.models.family_cases import golden_of
from tests.model_server.models.media.media_cases import golden_media_of, write_media_adapter
from tests.tools.golden.media.phi4 import IMAGE, SOUND
from tests.tools.golden.media.sounds import SOFT

pytestmark = [pytest.mark.timeout(600)]

LONG = ModelServerConfig(slots=4, page_size=16, max_context=128)
ROOM = {"DTYPE": '"float32"', "MAX_ADAPTERS": "3", "MAX_ADAPTER_RANK": "4"}


@dataclass
class Cell:
    folder: Path
    base: Path
    loader: ModelLoader
    asker: Asker
    adapters: list[Path]
    loads: Iterator[int] = field(default_factory=itertools.count)

    def load(self, name: str, folder: Path) -> LoadedAdapter:
        loaded = self.loader(adapter_spec(name, folder), quiet)
        assert isinstance(loaded, LoadedAdapter)
        self.asker.salts[loaded.place] = f"adapter {next(self.loads)}"
        return loaded

    def merged_answer(self, adapter: Path) -> list[int]:
        whole = merged(self.folder / f"merged {adapter.name}", self.base, adapter)
        loaded = self.loader(spec_of(whole, name="merged", DTYPE='"float32"'), quiet)
        assert isinstance(loaded, Loaded)
        asker = Asker(loaded)
        try:
            return asker.answers(0)[0]
        finally:
            asker.engine.close()
            shutil.rmtree(whole)


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    folder = tmp_path_factory.mktemp("adapters")
    base, loader = write_tiny(folder / "base"), make_loader(CONFIG)
    loaded = loader(spec_of(base, name="base", **ROOM), quiet)
    assert isinstance(loaded, Loaded)
    asker = Asker(loaded)
    adapters = [
        write_adapter(folder / "first", base, seed=1),
        write_adapter(folder / "second", base, seed=2, rank=4, alpha=3.0, targets=ATTENTION),
        write_adapter(
            folder / "third", base, seed=3, rank=1, targets=("q_proj", "down_proj"), dora=True
        ),
    ]
    yield Cell(folder, base, loader, asker, adapters)
    asker.engine.close()


def test_every_row_of_a_batch_is_answered_as_by_its_merged_checkpoint(cell: Cell) -> None:
    held = [cell.load(f"adapter-{i}", folder) for i, folder in enumerate(cell.adapters)]
    places = [each.place for each in held]
    together = cell.asker.answers(0, *places)
    assert together == [cell.asker.answers(place)[0] for place in (0, *places)]
    assert together[1:] == [cell.merged_answer(folder) for folder in cell.adapters]
    assert len({tuple(answer) for answer in together}) == 4  # each adapter says something else
    for each in held:
        each.runner.close()


def test_adapters_come_and_go_under_traffic_without_a_compile(cell: Cell) -> None:
    first, second, _ = cell.adapters
    alone = cell.asker.answers(0)[0]
    before = cell.loader.compiles_while_serving()
    running = [cell.asker.submit(0, 40) for _ in range(3)]
    found = [cell.load("first", first), cell.load("second", second)]
    found[0].runner.close()
    again = cell.load("again", second)
    assert again.place == found[0].place, "a free place is used again"
    asked = [*running, *(cell.asker.submit(each.place) for each in (again, found[1]))]
    answers = cell.asker.collected(asked)
    assert cell.loader.compiles_while_serving() == before
    assert all(answers[each][:TOKENS] == alone for each in running)
    assert answers[asked[-1]] == answers[asked[-2]], "one adapter in two places"
    for each in (again, found[1]):
        each.runner.close()


def test_a_score_is_computed_with_the_adapter(cell: Cell) -> None:
    held = cell.load("scored", cell.adapters[0])
    scores: list[tuple[float, ...]] = []
    for place in (0, held.place):
        cell.asker.engine.submit(
            EngineRequest(
                prompt=PROMPT,
                sampling=GREEDY,
                max_tokens=0,
                stop_ids=frozenset(),
                score_from=3,
                salt=cell.asker.salts.get(place, ""),
                adapter=place,
            )
        )
        update = cell.asker.updates.get(timeout=60)
        scores.append(update.result.target_logprobs)
    held.runner.close()
    assert scores[0] != scores[1]


def test_a_full_room_names_the_holders(cell: Cell) -> None:
    held = [cell.load(f"full-{i}", cell.adapters[0]) for i in range(3)]
    with pytest.raises(LoadFailed, match="room for 3 adapters .* /sax/test/full-0, .*full-1"):
        cell.load("one-more", cell.adapters[1])
    held[1].runner.close()
    assert cell.load("one-more", cell.adapters[1]).place == held[1].place
    for each in held:
        each.runner.close()


def test_an_adapter_needs_its_base(cell: Cell) -> None:
    with pytest.raises(LoadFailed, match="base /sax/test/other is not loaded here .*sax/test/base"):
        cell.loader(spec_of(cell.adapters[0], "lora", BASE='"/sax/test/other"'), quiet)
    with pytest.raises(InvalidRequest, match="BASE is") as caught:
        cell.loader(spec_of(cell.adapters[0], "lora"), quiet)
    assert caught.value.param == "overrides.BASE"


def broken(cell: Cell, name: str, change: Any) -> Path:
    """The first adapter with its tensors changed."""
    folder = cell.folder / name
    shutil.copytree(cell.adapters[0], folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


QUERY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def test_what_does_not_fit_the_base_is_refused_by_name(cell: Cell) -> None:
    def rename(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if "layers.1.self_attn.q_proj" in name]:
            tensors[name.replace("layers.1.", "layers.7.")] = tensors.pop(name)

    def widen(tensors: dict[str, Any]) -> None:
        tensors[QUERY] = tensors[QUERY].repeat(2, 1)

    def spoil(tensors: dict[str, Any]) -> None:
        tensors[QUERY][0, 0] = float("nan")

    for name, change, said in (
        ("renamed", rename, "layers.7.self_attn.q_proj.*take no adapter.*down_proj"),
        ("wide", widen, "q_proj.lora_A.weight.*does not fit the base"),
        ("spoiled", spoil, "q_proj.*not finite"),
    ):
        with pytest.raises(CheckpointError, match=said):
            cell.load(name, broken(cell, name, change))
    halved = write_adapter(cell.folder / "halved", cell.base, dora=True, use_dora=False)
    with pytest.raises(CheckpointError, match="has a lora_magnitude_vector, and use_dora is False"):
        cell.load("halved", halved)
    high = write_adapter(cell.folder / "high", cell.base, rank=5)
    with pytest.raises(CheckpointError, match="rank is 5 .*room for 4.*MAX_ADAPTER_RANK=5"):
        cell.load("high", high)
    assert cell.load("fits", cell.adapters[0]).place == 1, "what failed holds no place"


FLOAT = {"DTYPE": '"float32"'}
SMALL_ROOM = {**FLOAT, "MAX_ADAPTERS": "2", "MAX_ADAPTER_RANK": "4"}
SIZES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # whole blocks of 32 numbers


def loaded_base(loader: ModelLoader, name: str, path: Path, **overrides: str) -> Asker:
    loaded = loader(spec_of(path, name=name, **overrides), quiet)
    assert isinstance(loaded, Loaded)
    return Asker(loaded)


def adapted_answers(
    loader: ModelLoader, base: Path, adapter: Path, **overrides: str
) -> list[list[int]]:
    """Ask the base and its adapter, in one batch."""
    asker = loaded_base(loader, "base", base, **SMALL_ROOM, **overrides)
    try:
        held = loader(adapter_spec("adapter", adapter), quiet)
        assert isinstance(held, LoadedAdapter)
        asker.salts[held.place] = "adapter"
        return asker.answers(0, held.place)
    finally:
        asker.engine.close()


def plain_answer(loader: ModelLoader, path: Path) -> list[int]:
    asker = loaded_base(loader, "plain", path, **FLOAT)
    try:
        return asker.answers(0)[0]
    finally:
        asker.engine.close()


@pytest.mark.nightly
def test_an_adapter_of_a_quantised_gguf_file_answers_as_its_merged_checkpoint(
    tmp_path: Path,
) -> None:
    write_tiny(tmp_path / "whole", **SIZES)
    file, folder = tmp_path / "base.gguf", tmp_path / "dequantised"
    convert(str(tmp_path / "whole"), str(file), dtype="q4_0")
    convert(str(file), str(folder))
    adapter = write_adapter(tmp_path / "adapter", folder, rank=3)
    whole = merged(tmp_path / "merged", folder, adapter)
    loader = make_loader(CONFIG)
    own, adapted = adapted_answers(loader, file, adapter, QUANTIZE='"stored"')
    assert own == plain_answer(loader, folder)
    assert adapted == plain_answer(loader, whole)
    assert own != adapted


def _logprobs(logits: np.ndarray, prompt: Sequence[int], first: int) -> list[float]:
    """Of a prompt's tokens from the first one on."""
    logs = np.asarray(jax.nn.log_softmax(logits))
    return [float(logs[at - 1, prompt[at]]) for at in range(first, len(prompt))]


@pytest.mark.parametrize(
    ("case", "control", "below"),
    [
        pytest.param("granite_speech", {SOFT: "<|audio|>"}, "", marks=pytest.mark.extended),
        pytest.param(
            "phi4_multimodal",
            {IMAGE: "<|image|>", SOUND: "<|audio|>"},
            "vision-lora",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_checkpoints_own_adapter_answers_prompts_with_media_and_no_others(
    tmp_path: Path, case: str, control: dict[int, str], below: str
) -> None:
    """As transformers with PEFT: beside each other, and with adapters that are published."""
    folder = Path(folder_of(tmp_path / "own", control, case))
    config = json.loads((folder / "config.json").read_text())
    if "has_lora_adapter" in config:
        (folder / "config.json").write_text(json.dumps(config | {"has_lora_adapter": True}))
    write_media_adapter(case, folder / below)
    loader, spec = make_loader(LONG), spec_of(folder, name="base", **ROOM)
    loaded = loader(spec, quiet)
    assert isinstance(loaded, Loaded)
    assert loaded.images is not None
    seen = request_of(case, loaded.images.recipes)
    golden, text = golden_media_of(case), golden_of(case)
    words = replace(seen, prompt=tuple(map(int, text["prompt"])), media=(), score_from=1)
    published = loader(adapter_spec("same", folder / below), quiet)
    assert isinstance(published, LoadedAdapter)
    other = replace(words, adapter=published.place, salt="published")
    found, read, adapted = answered(loaded.runner, seen, words, other)
    first = seen.score_from or 0
    wanted = _logprobs(golden["adapted_logits"], seen.prompt, first)
    np.testing.assert_allclose(found.scores, wanted, atol=2e-4)
    assert found.tokens[0] == golden["adapted_logits"][-1].argmax()
    assert not np.allclose(wanted, _logprobs(golden["logits"], seen.prompt, first), atol=0.1)
    wanted = _logprobs(text["logits"], words.prompt, 1)
    np.testing.assert_allclose(read.scores, wanted, atol=2e-4)
    assert not np.allclose(adapted.scores, wanted, atol=1e-2), "its request names one"
    for each in (published.runner, loaded.runner):
        each.close()
