"""Orders and plans of tests."""

from __future__ import annotations

import copy
import json
from typing import Any

from k8s.render.bucket import StorageBucket
from k8s.render.order import Order, Planned, SlicePlacement, read_plan
from k8s.render.pathways.options import PathwaysOptions
from k8s.render.rendering import Rendered, render
from sax.slices import slice_of

MODEL = "lm_cloud.LmCloudSpmd175B32Test"
_GIB = 2**30


def order(**changes: Any) -> Order:
    usual = {"model": MODEL, "bucket": StorageBucket.parse("gs://my-sax"), "replicas": 2}
    return Order(**(usual | changes))


def rendered(
    topology: str = "v5e:4x8",
    machine: str | None = None,
    planned: Planned | None = None,
    **changes: Any,
) -> Rendered:
    placed = SlicePlacement(slice_of(topology, machine), planned)
    return render(order(**changes), placed, "sax k8s render ...")


def pathways(
    kind: str = "pathways", part: str = "all", replicas: int = 1, **options: Any
) -> Rendered:
    """Of an order whose model servers stand behind a proxy."""
    return rendered(
        kind=kind,
        part=part,
        name="sax-pathways",
        replicas=replicas,
        pathways=PathwaysOptions(**options),
    )


def by_name(objects: Any) -> dict[tuple[str, str], Any]:
    """Copies, by kind and name."""
    return {(each["kind"], each["metadata"]["name"]): copy.deepcopy(each) for each in objects}


def callers_of_admins(objects: Any) -> Any:
    """Whom the admin servers' network policy lets in; None for everybody."""
    policy = by_name(objects)["NetworkPolicy", "sax-admin-server"]
    return policy["spec"]["ingress"][0].get("from")


def plan_text(**changes: Any) -> str:
    """As `sax plan --json` writes it, of the tutorial's model."""
    where = {"topology": "v5e:4x8", "hosts": 8, "devices": 32, "chips": 32, "chips_per_host": 4}
    memory = {"weights": 11 * _GIB, "used": 13 * _GIB, "limit": 15 * _GIB, "kv_tokens": 4096}
    made = {"model": MODEL, "path": f"saxml.server.pax.lm.params.{MODEL}", "fits": True}
    return json.dumps({**made, "slice": where, "memory": memory, **changes})


def plan(**changes: Any) -> Planned:
    return read_plan(plan_text(**changes))
