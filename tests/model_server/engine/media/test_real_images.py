"""Real models with a toy encoder: what the engine computes is what the whole model does."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from model_server.engine.buckets import Bucket, closed_set
from model_server.engine.column_layout import ColumnLayout
from model_server.kernels import reference, xla
from model_server.kernels.cpu import native
from model_server.kernels.cpu.attention import CpuAttention
from model_server.kernels.gpu.attention import GpuAttention
from model_server.kernels.tpu.attention import TpuAttention
from tests.model_server.engine.media.driven import Driven
from tests.model_server.engine.media.tiny_vision_model import (
    CASES,
    TinyVisionModel,
    one_device,
    served,
)

ONE_BY_DAY = [
    name if name == "levels and triples" else pytest.param(name, marks=pytest.mark.nightly)
    for name in CASES
]


@cache
def tiny(name: str) -> TinyVisionModel:
    return TinyVisionModel(name)


def check(name: str, kernel: Any = xla.KERNEL, max_tokens: int = 6, **changes: Any) -> Driven:
    model = tiny(name)
    limits = model.limits(**changes)
    runner = model.compiled(limits, kernel)
    driven = served(model, runner, limits, max_tokens)
    runner.close()
    return driven


@pytest.mark.parametrize(
    "name", ["itself", pytest.param("levels and triples", marks=pytest.mark.nightly)]
)
def test_answers_about_images_are_those_of_the_whole_model(name: str) -> None:
    check(name)


@pytest.mark.nightly
def test_a_prompt_with_images_may_come_token_by_token() -> None:
    check("levels and triples", prefill_block=1, token_budget=3)


@pytest.mark.parametrize("name", ONE_BY_DAY)
def test_preempted_prompts_have_their_images_again(name: str) -> None:
    driven = check(name, max_tokens=20, pages=8, token_budget=3 + 8)
    assert driven.scheduler.preemptions > 0


@pytest.mark.parametrize("name", ONE_BY_DAY)
def test_prompts_share_pages_behind_images(name: str) -> None:
    model = tiny(name)
    limits = model.limits(prefix_cache="all")
    driven = Driven(limits, model.compiled(limits))
    first, second = (model.request(tuple(range(3, 10)), 7, end) for end in ((20, 21), (20, 22)))
    for each in (first, second, first):
        id = driven.add(each)
        driven.run()
        model.check(each, driven.tokens(id), driven.logprobs(id))
    assert driven.last(id).cached == len(first.prompt) - 1
    assert driven.log.count("encode") == 1
    driven.runner.close()


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_the_reference_kernel_agrees(name: str) -> None:
    check(name, reference.KERNEL)


@pytest.mark.skipif(not native.available(), reason="the native kernels are not built")
def test_the_native_kernel_agrees() -> None:
    check("itself", CpuAttention())


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [GpuAttention, TpuAttention])
def test_the_kernels_of_accelerators_agree_when_interpreted(kind: Any) -> None:
    check("itself", kind(one_device().mesh, None, None, interpret=True), page_size=8)


def test_a_model_that_takes_text_alone_has_no_further_columns() -> None:
    limits = tiny("levels and triples").limits(media=None)
    for bucket in closed_set(limits.slots, (1, 2)):
        layout = ColumnLayout(bucket, limits)
        assert layout.parts["positions"][1] == (layout.tokens,)
        assert "block_ahead" not in layout.parts


def test_decodes_read_no_image() -> None:
    model = tiny("itself")
    program = model.runner(model.limits()).program
    assert not program.reads_media(Bucket(3, 0))
    assert program.reads_media(Bucket(3, 1))
