"""Program keys for a mesh of local devices or of a remote slice."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from jax.sharding import Mesh

from model_server.engine.limits import EngineLimits
from model_server.models.weights.sharding import Layout
from model_server.multihost.hello import machine
from model_server.programs.keys import Keys, flags_of


def keys_of(layout: Layout) -> Keys:
    """Return what programs over these devices depend on, with this process's compiler."""
    mesh = layout.mesh
    assert isinstance(mesh, Mesh), "a layout of sizes is nowhere"
    devices = list(mesh.devices.flat)
    first = devices[0]
    shares = Counter(device.process_index for device in devices)
    return Keys(
        platform=first.platform,
        chip=first.device_kind,
        machine=machine() if first.platform == "cpu" else "",
        jax=version("jax"),
        jaxlib=version("jaxlib"),
        libtpu=_libtpu() if first.platform == "tpu" else "",
        flags=flags_of(os.environ),
        mesh="x".join(str(size) for size in mesh.shape.values()),
        hosts=len(shares),
        devices_per_host=max(shares.values()),
        devices=tuple(map(_place, devices)),
    )


def digest_of(shapes: Iterable[Any]) -> str:
    """Return a digest that differs for weights of other shapes, dtypes or shardings."""
    digest = hashlib.sha256()
    for shape in shapes:
        digest.update(f"{shape.shape} {shape.dtype} {shape.sharding.spec}\n".encode())
    return digest.hexdigest()[:16]


def draft_key(shapes: Iterable[Any], limits: EngineLimits) -> str:
    """Return what tells a draft model of these weights from others in a manifest."""
    return f"{digest_of(shapes)}, {limits.draft_tokens} guesses"  # a key of precompiled sets


def _place(device: Any) -> str:
    coordinates = getattr(device, "coords", None)
    if coordinates is None:
        return str(device.id)
    at = ",".join(str(each) for each in coordinates)
    return f"{device.id} at {at} core {getattr(device, 'core_on_chip', 0)}"


def _libtpu() -> str:
    try:
        return version("libtpu")
    except PackageNotFoundError:
        return "not installed by pip"
