"""A plan as a table, a picture and the values of a cluster."""

from __future__ import annotations

import io
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from model_server.plan.command import kubernetes_values
from model_server.plan.model_plan import (
    BucketPlan,
    Decoding,
    DraftPlan,
    DraftTokenPlan,
    FirstToken,
    Memory,
    ModelPlan,
    Slice,
)
from model_server.plan.output.views import roofline_svg, show
from sax.errors import InvalidRequest
from tests.each_case import each_case

_GIB = 2**30


def _slice(topology: str = "v5e:4x8", **changes: Any) -> Slice:
    values = {
        "hosts": 8,
        "chips": 32,
        "chips_per_host": 4,
        "devices": 32,
        "hbm_per_chip": 16 * _GIB,
    }
    chip = topology.partition(":")[0]
    mesh = {"replica": 1, "data": 1, "model": 32}
    return Slice(topology=topology, chip=chip, mesh=mesh, **(values | changes))


def _bucket(decodes: int, blocks: int, bound: str) -> BucketPlan:
    sizes = {"arguments": _GIB, "temporaries": 2**20, "outputs": 64, "code": 2**20}
    return BucketPlan(
        decodes=decodes,
        blocks=blocks,
        tokens=decodes,
        **sizes,
        flops=1e12,
        flops_compiled=9e11,
        bytes=1e10,
        bytes_compiled=1.1e10,
        open_loop_bytes=0,
        sent={"all-reduce": 5_000_000},
        collectives=3,
        seconds=0.0134,
        bound=bound,
        compile_seconds=7.0,
    )


def _plan(**changes: Any) -> ModelPlan:
    decoding = Decoding(
        batch=32,
        context=2048,
        longest=4096,
        seconds=0.0134,
        tokens_per_second=2388.0,
        per_chip=74.6,
        bound="HBM",
    )
    values: dict[str, Any] = {
        "model": "some/model",
        "path": "auto",
        "parameters": 70_000_000_000,
        "slots": 32,
        "max_context": 8192,
        "context": 2048,
        "slice": _slice(),
        "fits": True,
        "memory": Memory(
            limit=15 * _GIB,
            weights=4 * _GIB,
            arguments=12 * _GIB,
            temporaries=_GIB,
            outputs=64,
            code=2**20,
            kv=8 * _GIB,
            kv_pages=8191,
            kv_near_pages=0,
            kv_pages_free=9000,
            kv_free=9001 * 2**20,
            page_size=64,
        ),
        "buckets": [_bucket(32, 0, "HBM"), _bucket(32, 8, "FLOPs")],
        "decoding": [decoding],
        "first_token": [FirstToken(prompt=1024, steps=1, seconds=0.05)],
    }
    return ModelPlan(**(values | changes))


def _shown(plan: ModelPlan) -> str:
    out = io.StringIO()
    show(plan, Console(file=out, width=100, highlight=False))
    return out.getvalue()


def test_the_table_tells_memory_steps_and_speeds_and_that_these_are_predicted() -> None:
    text = _shown(_plan())
    assert "70.00 B parameters" in text
    assert "8 hosts with 4 each" in text
    assert "524,224 tokens" in text
    assert "1.10x" in text
    assert "2,388" in text
    assert "Predicted" in text
    assert "it fits v5e:4x8" in text


def test_the_table_tells_which_part_is_the_draft_models() -> None:
    draft = DraftPlan(
        model="a/small\x1b one",
        parameters=1_240_000_000,
        weights=_GIB,
        kv=2 * _GIB,
        draft_tokens=[DraftTokenPlan(rows=2, seconds=0.0015, bound="HBM")],
    )
    text = _shown(_plan(draft=draft))
    assert "1.00 GiB of that the draft model's" in text
    assert "2.00 GiB of that the draft model's" in " ".join(text.split())
    assert "draft model a/small\ufffd one: 1.24 B parameters" in text
    assert "1.50 ms (2)" in text
    assert "draft" not in _shown(_plan())


def test_a_plan_that_does_not_fit_ends_with_what_to_change() -> None:
    plan = _plan(fits=False, problem="it needs 20 GiB", advice=["--max_context 512: 9 GiB"])
    assert (
        _shown(plan)
        .rstrip()
        .endswith("it would fit with one of these changes:\n  --max_context 512: 9 GiB")
    )


def test_nothing_in_a_name_moves_the_terminal() -> None:
    assert "\x1b" not in _shown(_plan(model="\x1b[31mred", memory=None, buckets=[], decoding=[]))


def test_the_picture_has_a_roof_and_a_point_for_every_bucket() -> None:
    root = ElementTree.fromstring(roofline_svg(_plan(model="a <b> & c")))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}polyline")) == 1
    titled = [
        dot for dot in root.findall(f"{space}circle") if dot.find(f"{space}title") is not None
    ]
    assert len(titled) == 2
    colours = {dot.get("fill") for dot in titled}
    assert len(colours) == 2  # what bounds them differs
    for dot in titled:
        assert 80 <= float(dot.get("cx") or 0) <= 730
        assert 50 <= float(dot.get("cy") or 0) <= 420


@each_case(
    "topology, hosts, chips_per_host, lines",
    [
        ("v5e:4x8", 8, 4, ["gke-tpu-accelerator: tpu-v5-lite-podslice", "ct5lp-hightpu-4t"]),
        ("v5e:1x1", 1, 1, ["ct5lp-hightpu-1t", "google.com/tpu: 1"]),
        ("v6e:2x4", 2, 4, ["gke-tpu-accelerator: tpu-v6e-slice", "ct6e-standard-4t"]),
        ("v7x:2x2x1", 1, 4, ["gke-tpu-accelerator: tpu7x", "gke-tpu-topology: 2x2x1"]),
    ],
)
def test_a_cluster_is_told_what_nodes_a_replica_needs(
    topology: str, hosts: int, chips_per_host: int, lines: list[str]
) -> None:
    where = _slice(topology, hosts=hosts, chips_per_host=chips_per_host)
    text = kubernetes_values(where, "some/model\n- evil")
    assert all(line in text for line in lines)
    assert f"hosts: {hosts}\n" in text
    assert "\n- evil" not in text


def test_a_chip_that_clusters_lack_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="has no v3"):
        kubernetes_values(_slice("v3:4x8"), "some/model")
