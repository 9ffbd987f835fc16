"""The plan fits, is as large as it may be, and a refusal has every number."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_server.loading.memory_plan import FreeMemory, MemoryPlan, PageBytes, plan_memory
from sax.errors import MemoryPlanError

GIB = 2**30
MIB = 2**20


def plan(**changes: Any) -> MemoryPlan:
    """Of a model with 2 GiB of weights and pages of a MiB, on an idle device of 8 GiB."""
    given: dict[str, Any] = {
        "weights": 2 * GIB,
        "of": PageBytes(MIB),
        "workspace": 0,
        "limit": 8 * GIB,
        "in_use": 0,
        "wanted_pages": None,
        "min_pages": 16,
    }
    return plan_memory(**given | changes)


def test_wanted_pages_are_granted_when_they_fit() -> None:
    made = plan(workspace=GIB, in_use=GIB, wanted_pages=1023)
    assert (made.pages, made.kv, made.total) == (1023, GIB, 4 * GIB)


def test_without_a_wish_the_pool_fills_what_is_left() -> None:
    made = plan(workspace=GIB, in_use=GIB)
    assert (made.pages, made.total) == (4 * 1024 - 1, 7 * GIB)


def test_a_refusal_has_every_number_and_names_the_flags() -> None:
    with pytest.raises(MemoryPlanError) as caught:
        plan(weights=6 * GIB, workspace=512 * MIB, in_use=GIB, wanted_pages=2047)
    for part in ("6.00 GiB", "2.00 GiB", "512.00 MiB", "8.50 GiB", "8.00 GiB", "1.00 GiB"):
        assert part in caught.value.text
    assert "lower --kv_cache_bytes or --slots" in caught.value.text
    assert f"raise --memory_limit_bytes to {9 * GIB + 512 * MIB}" in caught.value.text


def test_weights_alone_too_large_do_not_blame_the_cache() -> None:
    with pytest.raises(MemoryPlanError, match="raise --memory_limit_bytes") as caught:
        plan(weights=9 * GIB, min_pages=1)
    assert "kv_cache_bytes" not in caught.value.text
    assert "unload" not in caught.value.text


def test_a_cache_smaller_than_one_sequence_is_refused() -> None:
    with pytest.raises(MemoryPlanError, match="raise --kv_cache_bytes to 1048576") as caught:
        plan(weights=0, of=PageBytes(1024), limit=GIB, wanted_pages=511, min_pages=1023)
    assert "lower --max_context" in caught.value.text


def test_the_numbers_of_a_raised_limit_work_out() -> None:
    numbers = {"weights": 6 * GIB, "wanted_pages": 100, "min_pages": 10}
    with pytest.raises(MemoryPlanError) as caught:
        plan(limit=GIB, **numbers)
    advice = int(caught.value.text.partition("--memory_limit_bytes to ")[2].split()[0])
    assert plan(limit=advice, **numbers).total == advice
    with pytest.raises(MemoryPlanError):
        plan(limit=advice - 1, **numbers)


sizes = st.integers(0, 10_000)


@given(
    weights=sizes,
    page=st.integers(1, 500),
    workspace=sizes,
    limit=sizes,
    in_use=sizes,
    wanted=st.none() | st.integers(1, 100),
    least=st.integers(1, 50),
)
def test_a_plan_never_exceeds_the_limit_nor_wastes_a_page(
    weights: int,
    page: int,
    workspace: int,
    limit: int,
    in_use: int,
    wanted: int | None,
    least: int,
) -> None:
    free = limit - in_use - weights - workspace
    try:
        made = plan_memory(
            weights=weights,
            of=PageBytes(page),
            workspace=workspace,
            limit=limit,
            in_use=in_use,
            wanted_pages=wanted,
            min_pages=least,
        )
    except MemoryPlanError:
        asked = least if wanted is None else wanted
        assert asked < least or (max(asked, least) + 1) * page > free
        return
    assert made.pages >= least
    assert made.total == weights + workspace + made.kv <= limit - in_use
    assert made.kv == (made.pages + 1) * page
    assert made.pages == wanted if wanted else made.kv + page > free


def test_too_little_memory_on_many_devices_is_told_of_each_and_of_all() -> None:
    says = r"9\.00 GiB on each of 4 devices \(36\.00 GiB in all"
    with pytest.raises(MemoryPlanError, match=says):
        plan(weights=8 * GIB, of=PageBytes(GIB // 2), limit=GIB, min_pages=1, devices=4)


def test_a_refusal_names_the_models_in_memory_and_the_numbers_to_change() -> None:
    there = FreeMemory(4 * GIB, 3 * GIB, {"/sax/test/a": GIB, "/sax/test/b": 2 * GIB})
    with pytest.raises(MemoryPlanError) as caught:
        plan(
            weights=GIB // 2,
            limit=there.limit,
            in_use=there.in_use,
            wanted_pages=2000,
            others=there.others,
        )
    text = caught.value.text
    assert "in use by other models (/sax/test/b 2.00 GiB, /sax/test/a 1.00 GiB)" in text
    for number in ("--kv_cache_bytes", "--slots", "KV_CACHE_BYTES", "NUM_CACHE_SLOTS"):
        assert number in text


@given(shares=st.integers(1, 8), free=st.integers(200, 10_000), least=st.integers(1, 50))
def test_models_to_come_find_their_share_of_the_pages(shares: int, free: int, least: int) -> None:
    """Each takes what is left, divided by those still to come, and none gets less than a share."""
    page, in_use, granted = 2**20, 0, []
    for left in range(shares, 0, -1):
        limit = (free + shares * (least + 1)) * page
        made = plan(weights=0, limit=limit, in_use=in_use, min_pages=least, shares=left)
        in_use += made.total
        granted.append(made.pages)
    assert in_use <= (free + shares * (least + 1)) * page
    assert min(granted) >= free // shares - 1
    assert max(granted) - min(granted) <= shares
