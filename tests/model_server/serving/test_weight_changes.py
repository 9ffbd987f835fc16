"""Weights of a real small model change under its requests: no compile, no loss, no mixture."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_server.engine.engine import EngineRequest, SequenceUpdate
from model_server.loading.loaded import Loaded
from model_server.loading.loader import ModelLoader, make_loader
from model_server.loading.new_weights import GIVEN
from model_server.serving.lm_servable import LmServable
from sax.errors import CheckpointError, InvalidRequest, SaxError, StaleRevision, Unavailable
from sax.weights import Pausing, WeightAction, WeightChange, WeightState
from tests.each_case import Failures
from tests.model_server.checkpoints.tiny_folder import write_tiny
from tests.model_server.loading.asker import CONFIG, GREEDY, PROMPT
from tests.model_server.loading.loads import quiet, spec_of
from tests.model_server.loading.test_recurrent_models import folder_of

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]

TOKENS = 24
NORM = "model.norm.weight"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}


def change(source: str, **more: Any) -> WeightChange:
    action = WeightAction.UPDATE
    return WeightChange(model_id="/sax/test/m", action=action, source=source, **more)


class Folders:
    """Two checkpoints of one shape, and some that do not fit."""

    def __init__(self, at: Path) -> None:
        self.at = at
        self.old, self.new = write_tiny(at / "old", **SIZES), at / "new"
        shutil.copytree(self.old, self.new)
        stored, draw = load_file(self.old / "model.safetensors"), np.random.default_rng(1)
        self.tensors = {
            name: draw.standard_normal(array.shape).astype(array.dtype)
            for name, array in stored.items()
        }
        save_file(self.tensors, self.new / "model.safetensors")

    def changed(self, name: str, **tensors: np.ndarray) -> Path:
        """The new one, with other tensors."""
        made = self.at / name
        shutil.copytree(self.new, made)
        save_file({**self.tensors, **tensors}, made / "model.safetensors")
        return made


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def loader() -> ModelLoader:
    return make_loader(CONFIG)


@pytest.fixture
def loaded(
    loader: ModelLoader, folders: Folders, request: pytest.FixtureRequest
) -> Iterator[Loaded]:
    made = loader(spec_of(folders.old, **getattr(request, "param", {})), quiet)
    assert isinstance(made, Loaded)
    yield made
    assert made.runner.closed


class Asked:
    """One greedy answer, and the version of the weights as each of its tokens arrived."""

    def __init__(self, servable: LmServable, prompt: tuple[int, ...] = PROMPT) -> None:
        self.tokens: list[int] = []
        self.versions: list[str] = []
        self._servable = servable
        self._ended = asyncio.get_running_loop().create_future()
        self.begun = asyncio.Event()
        asked = EngineRequest(
            prompt=prompt, sampling=GREEDY, max_tokens=TOKENS, stop_ids=frozenset()
        )
        servable.submit(asked, self._receive)

    def _receive(self, update: SequenceUpdate) -> None:
        assert update.error is None, update.error
        assert update.result.token is not None
        self.tokens.append(update.result.token)
        self.versions.append(self._servable.weights.version)
        self.begun.set()
        if update.finish:
            self._ended.set_result(self.tokens)

    async def answer(self) -> list[int]:
        return await asyncio.wait_for(asyncio.shield(self._ended), 120)


async def answer(servable: LmServable) -> list[int]:
    return await Asked(servable).answer()


def large_pages(loaded: Loaded) -> set[int]:
    """Where the weights lie."""
    leaves: Any = loaded.runner
    return {leaf.unsafe_buffer_pointer() >> 21 for leaf in leaves.leaves}


async def of(loader: ModelLoader, folder: Path, **overrides: str) -> list[int]:
    """What a model that was loaded from a folder answers."""
    async with serving(loader, folder, "fresh", **overrides) as servable:
        return await answer(servable)


@asynccontextmanager
async def serving(
    loader: ModelLoader, folder: Path, name: str, **overrides: str
) -> AsyncGenerator[LmServable]:
    made = await asyncio.to_thread(loader, spec_of(folder, name=name, **overrides), quiet)
    assert isinstance(made, Loaded)
    servable = LmServable(f"/sax/test/{name}", made)
    try:
        yield servable
    finally:
        await servable.close(10)


KINDS = (
    {},
    pytest.param({"QUANTIZE": '"int8"'}, marks=pytest.mark.nightly),
    pytest.param({"QUANTIZE": '"int4"'}, marks=pytest.mark.nightly),
    pytest.param({"DTYPE": '"bfloat16"'}, marks=pytest.mark.nightly),
)


@pytest.mark.parametrize("loaded", KINDS, indirect=True, ids=str)
async def test_new_weights_answer_as_a_fresh_load_of_them_would_and_compile_nothing(
    loaded: Loaded, loader: ModelLoader, folders: Folders, request: pytest.FixtureRequest
) -> None:
    how = request.node.callspec.params["loaded"]
    servable = LmServable("/sax/test/m", loaded)
    old, new = await answer(servable), await of(loader, folders.new, **how)
    assert old != new
    places: list[set[int]] = []
    for sent in range(3):
        changes = servable.weights
        assert await changes.update(change(str(folders.new))) == str(2 * sent + 1)
        assert await answer(servable) == new
        places.append(large_pages(loaded))
        await changes.update(change(str(folders.old)))
        assert await answer(servable) == old
        assert not places[-1] & large_pages(loaded)
    if "int4" not in str(how):  # which jax copies
        assert places[0] == places[1] == places[2], "memory is used again"
    await servable.weights.sleep()
    with pytest.raises(Unavailable, match="asleep"):
        await servable.weights.update(change(str(folders.new)))
    await servable.weights.wake(str(folders.new))
    assert await answer(servable) == new
    assert loader.compiles_while_serving() == 0
    await servable.close(10)


FLOAT = {"DTYPE": '"float32"'}
OTHERS: dict[str, tuple[str, Mapping[str, str]]] = {
    "experts": ("mixtral", FLOAT),
    "experts in int8": ("mixtral", {"QUANTIZE": '"int8"'}),
    "shared experts and latent attention": ("deepseek_v3", FLOAT),
    "states": ("mamba2", FLOAT),
    "room for adapters": ("llama_tied", {**FLOAT, "MAX_ADAPTERS": "2", "MAX_ADAPTER_RANK": "4"}),
    "a draft model": (
        "llama_untied_mqa",
        {**FLOAT, "SPECULATION": '"draft"', "DRAFT_MODEL": '"{old}"', "MAX_GUESSES": "4"},
    ),
}


@pytest.mark.nightly
async def test_weights_of_every_kind_change_to_what_a_fresh_load_has(
    loader: ModelLoader, tmp_path: Path
) -> None:
    failures = Failures()
    for kind, (family, given) in OTHERS.items():
        old, new = tmp_path / family, tmp_path / f"{family}-new"
        overrides = {name: text.replace("{old}", str(old)) for name, text in given.items()}
        if not old.exists():
            old.mkdir()
            folder_of(family, old)
            shutil.copytree(old, new)
            stored = load_file(old / "model.safetensors")
            save_file({n: a[::-1].copy() for n, a in stored.items()}, new / "model.safetensors")
        with failures.of(kind):
            async with serving(loader, old, "m", **overrides) as servable:
                before = await answer(servable)
                await servable.weights.update(change(str(new)))
                after = await answer(servable)
                await servable.weights.update(change(str(old)))
                assert await answer(servable) == before
            assert after == await of(loader, new, **overrides)
            assert after != before
    failures.end()


async def test_running_answers_end_on_old_weights_go_on_with_new_ones_or_are_recomputed(
    loaded: Loaded, loader: ModelLoader, folders: Folders
) -> None:
    servable = LmServable("/sax/test/m", loaded)
    old, new = await answer(servable), await of(loader, folders.new)

    async def one(pausing: Pausing) -> None:
        await servable.weights.update(change(str(folders.old), version="before"))
        running = [Asked(servable) for _ in range(2)]
        await running[0].begun.wait()
        done = asyncio.ensure_future(
            servable.weights.update(change(str(folders.new), pausing=pausing, version="after"))
        )
        answers = [await each.answer() for each in running]
        await done
        assert await answer(servable) == new
        if pausing is Pausing.WAIT:
            assert answers == [old, old]
        for each in running:
            assert each.versions == sorted(each.versions, reverse=True), "before, then after"
            before = each.versions.count("before")
            assert each.tokens[:before] == old[:before]

    for pausing in Pausing:
        await one(pausing)
    await servable.close(10)


async def test_arrays_shared_memory_and_single_tensors_replace_weights(
    loaded: Loaded, loader: ModelLoader, folders: Folders
) -> None:
    servable = LmServable("/sax/test/m", loaded)
    new = await of(loader, folders.new)
    first = {each: array for each, array in folders.tensors.items() if ".layers.0." in each}
    rest = {each: array for each, array in folders.tensors.items() if each not in first}
    name = f"sax-test-{secrets.token_hex(6)}"
    shared = Path("/dev/shm") / name
    try:
        save_file(first, shared)
        GIVEN["rest"] = rest
        await servable.weights.update(change(f"shm:{name}", partial=True))
        assert await answer(servable) != new
        await servable.weights.update(change("memory:rest", partial=True))
        assert await answer(servable) == new
    finally:
        shared.unlink(missing_ok=True)
        GIVEN.pop("rest", None)
    await servable.weights.sleep()
    with pytest.raises(InvalidRequest, match="came from memory"):
        await servable.weights.wake()
    await servable.close(10)


async def test_what_does_not_fit_is_refused_in_words_and_the_old_weights_serve_on(
    loaded: Loaded, folders: Folders
) -> None:
    servable = LmServable("/sax/test/m", loaded)
    old = await answer(servable)
    wide = folders.changed("wide", **{NORM: np.ones(65, np.float32)})
    torn = folders.changed("torn")
    whole = (torn / "model.safetensors").read_bytes()
    (torn / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    GIVEN["ints"] = {NORM: np.ones(64, np.int32)}
    part = "model.layers.0.self_attn.k_proj.weight"
    GIVEN["part"] = {part: folders.tensors[part]}
    GIVEN["other"] = {"model.norm.bias": np.ones(64, np.float32)}
    refusals: dict[str, tuple[WeightChange, type[SaxError], str]] = {
        "other shapes": (change(str(wide)), CheckpointError, r"\[65\]"),
        "torn": (change(str(torn)), CheckpointError, "model.safetensors"),
        "torn file": (
            change(str(torn / "model.safetensors")),
            CheckpointError,
            "truncated: tensor",
        ),
        "missing": (change(str(folders.at / "no")), CheckpointError, "does not exist"),
        "ints": (change("memory:ints", partial=True), CheckpointError, "int32"),
        "unknown": (change("memory:other", partial=True), CheckpointError, "norm.bias"),
        "fused": (change("memory:part", partial=True), CheckpointError, r"give .*v_proj"),
        "some": (change("memory:ints"), CheckpointError, "int32"),
        "not given": (change("memory:none"), CheckpointError, "given no such arrays"),
        "shm": (change("shm:../etc"), CheckpointError, "names no shared memory"),
        "version": (change("x", version="a b"), InvalidRequest, "no version"),
        "expected": (change("x", expected="7"), StaleRevision, "version 0, not '7'"),
    }

    for name, (asked, kind, text) in refusals.items():
        with pytest.raises(kind, match=text):
            await servable.weights.update(asked)
        assert await answer(servable) == old, name
    del GIVEN["ints"], GIVEN["other"], GIVEN["part"]
    assert servable.weights.version == ""
    await servable.close(10)


async def test_one_change_at_a_time_and_a_pause_holds_requests(
    loaded: Loaded, folders: Folders
) -> None:
    servable = LmServable("/sax/test/m", loaded)
    old = await answer(servable)
    changes = servable.weights
    running = asyncio.ensure_future(changes.update(change(str(folders.old))))
    await asyncio.sleep(0)
    for refused in (
        changes.update(change(str(folders.new))),
        changes.pause(),
        changes.sleep(),
    ):
        with pytest.raises(Unavailable, match="under way"):
            await refused
    await running
    await changes.pause(Pausing.KEEP)
    assert changes.state is WeightState.PAUSED
    waiting = Asked(servable)
    await asyncio.sleep(0.05)
    assert not waiting.begun.is_set()
    await changes.resume()
    assert await waiting.answer() == old
    with pytest.raises(InvalidRequest, match="keys and values"):
        await changes.sleep(Pausing.KEEP)
    await servable.close(10)
