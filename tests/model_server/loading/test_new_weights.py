"""New weights of a model that keeps them as a GGUF file stores them, and damaged sources."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from model_server.checkpoints.packed import Packing
from model_server.config import ModelServerConfig
from model_server.engine.running.ops import ForgetWeights, ReadWeights, WriteWeights
from model_server.loading.new_weights import GIVEN
from model_server.models.weights.quantization import fits
from model_server.plan.checkpoint.convert import convert
from model_server.serving.sampler import SampledAnswer, Sampler
from sax.errors import CheckpointError
from tests.model_server.checkpoints.tiny_folder import write_tiny

CONFIG = ModelServerConfig(slots=2, page_size=16, max_context=64, kv_cache_bytes=1 << 20)
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "head_dim": 32,
}  # whole blocks
PROMPTS = [(3, 5, 8, 13), (21, 34)]


def answers(sampler: Sampler) -> list[SampledAnswer]:
    return [each._replace(weights=()) for each in sampler.sample(PROMPTS, max_tokens=6)]


def after(sampler: Sampler, source: Any) -> list[SampledAnswer]:
    sampler.update_weights(source)
    return answers(sampler)


def loaded(checkpoint: object, **overrides: str) -> list[SampledAnswer]:
    with Sampler(str(checkpoint), overrides=overrides, config=CONFIG) as sampler:
        return answers(sampler)


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_stored_weights_change_to_those_of_another_file_and_of_a_folder(tmp_path: Path) -> None:
    """Those of a file as they lie, to the last bit; those of a folder and arrays quantised in the
    model's own form."""
    old, new = write_tiny(tmp_path / "old", **SIZES), write_tiny(tmp_path / "new", **SIZES)
    arrays = {name: a[::-1].copy() for name, a in load_file(new / "model.safetensors").items()}
    save_file(arrays, new / "model.safetensors")
    for folder, dtype in ((old, "q8_0"), (new, "q8_0"), (new, "q4_0")):
        convert(str(folder), f"{folder}-{dtype}.gguf", dtype=dtype)
    stored = {"QUANTIZE": '"stored"'}
    wanted = [loaded(f"{each}-q8_0.gguf", **stored) for each in (new, old)]
    plain = loaded(new)
    with Sampler(f"{old}-q8_0.gguf", overrides=stored, config=CONFIG) as sampler:
        found = [after(sampler, f"{each}-q8_0.gguf") for each in (new, old)]
        from_folder, given = after(sampler, str(new)), after(sampler, arrays)
        narrow = after(sampler, f"{new}-q4_0.gguf")
    assert found == wanted
    assert from_folder == given
    firsts = [each[0].logprobs[0] for each in (from_folder, plain)]
    np.testing.assert_allclose(*firsts, atol=0.1)
    assert len({str(each) for each in (*found, given, narrow)}) == 4, "some changes change nothing"


def test_what_a_form_holds_is_taken_as_it_is_and_all_else_is_quantised_again() -> None:
    rows, blocks = Packing("int4", None, offset=False), Packing("int8", 32, offset=True)
    assert fits(rows, blocks, 64)
    assert fits(replace(blocks, block=64), blocks, 64)
    for unlike in (rows, replace(blocks, kind="int4"), replace(blocks, offset=False)):
        assert not fits(blocks, unlike, 64)
    assert not fits(replace(blocks, block=16), blocks, 64)


class StoredFile:
    """A safetensors file, in parts that can be damaged."""

    def __init__(self, folder: Path) -> None:
        whole = (folder / "model.safetensors").read_bytes()
        length = int.from_bytes(whole[:8], "little")
        self.header: dict[str, Any] = json.loads(whole[8 : 8 + length])
        self.header.pop("__metadata__", None)
        self.numbers = whole[8 + length :]

    def damaged(self, draw: Callable[..., Any]) -> bytes:
        """One of the faults that every reader can see."""
        header = json.loads(json.dumps(self.header))
        name, other = draw(st.permutations(sorted(header)))[:2]
        entry, longer, cut = header[name], 0, None
        fault = draw(
            st.sampled_from(("cut", "length", "entry", "dtype", "shape", "names", "shared"))
        )
        if fault == "cut":
            cut = draw(st.integers(1, len(self.numbers) + 100))
        elif fault == "length":
            longer = draw(st.sampled_from((-1, 1, 1 << 40, (1 << 63) - 1)))
        elif fault == "entry":
            no_number = draw(st.sampled_from((float("nan"), float("inf"), -1, True, "8", 1 << 70)))
            key = draw(st.sampled_from(("shape", "data_offsets")))
            entry[key][draw(st.integers(0, len(entry[key]) - 1))] = no_number
        elif fault == "dtype":
            entry["dtype"] = draw(st.sampled_from(("F16", "F64", "I32", "F7", "", None, 7)))
        elif fault == "shape":
            entry["shape"] = draw(st.sampled_from(([*entry["shape"], 1], [2, *entry["shape"]], {})))
        elif fault == "names":
            del header[name]
            if draw(st.booleans()):
                header[f"{name}s"] = entry
        else:
            header[other]["data_offsets"] = entry["data_offsets"]
        text = json.dumps(header).encode()
        length = max(len(text) + longer, 0).to_bytes(8, "little")
        return (length + text + self.numbers)[: -cut if cut else None]


@contextmanager
def shared(content: bytes) -> Iterator[str]:
    path = Path("/dev/shm") / f"sax-test-{secrets.token_hex(6)}"
    try:
        path.write_bytes(content)
        yield f"shm:{path.name}"
    finally:
        path.unlink(missing_ok=True)


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_no_damaged_source_changes_a_bit_of_the_weights(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "whole", **SIZES)
    stored, alone = StoredFile(folder), tmp_path / "alone.safetensors"
    with Sampler(str(folder), config=CONFIG) as sampler:
        runner: Any = sampler.loaded.runner
        leaves, before = list(runner.leaves), answers(sampler)
        bits = [np.asarray(each).tobytes() for each in leaves]

        @given(st.data())
        def refused(data: st.DataObject) -> None:
            content = stored.damaged(data.draw)
            alone.write_bytes(content)
            with shared(content) as memory:
                for source in (str(alone), memory):
                    with pytest.raises(CheckpointError):
                        sampler.update_weights(source)
            assert all(a is b for a, b in zip(leaves, runner.leaves, strict=True))

        refused()
        assert bits == [np.asarray(each).tobytes() for each in runner.leaves]
        assert (sampler.version, answers(sampler)) == ("0", before)


@pytest.mark.extended
def test_weights_that_are_forgotten_while_they_are_read_are_not_kept(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "whole", **SIZES)
    with Sampler(str(folder), config=CONFIG) as sampler:
        runner = sampler.loaded.runner

        class Forgotten(dict[str, Any]):
            def items(self) -> Any:
                runner.do(ForgetWeights("key"))
                return super().items()

        GIVEN["some"] = Forgotten(load_file(folder / "model.safetensors"))
        runner.do(ReadWeights("key", "memory:some", False)).result()
        del GIVEN["some"]
        with pytest.raises(KeyError):
            runner.do(WriteWeights("key"))
