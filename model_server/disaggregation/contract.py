"""Properties that two servers must share to exchange KV pages of a model, and their comparison."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

from sax.errors import InvalidRequest
from sax.types import ModelSpec

_SAID = {
    "source": "weights",
    "page_size": "page size",
    "kv_dtype": "type of cached keys and values",
    "layers": "number of layers",
    "kv_heads": "number of KV heads",
    "key_dim": "size of a key",
    "value_dim": "size of a value",
    "mesh": "mesh",
    "hosts": "number of hosts",
    "jaxlib": "version of jaxlib",
    "draft": "pages of the draft model",
    "near_window": "window of the layers with pages of their own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Layout of one model's KV pages on one server."""

    source: str  # of the weights (`source_of`)
    page_size: int
    kv_dtype: str
    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int
    mesh: str
    hosts: int
    jaxlib: str  # pages travel over its own protocol
    draft: str = ""  # layers and sizes of the draft model's pages; "": there is none
    near_window: int = 0  # tokens that layers with pages of their own see; 0: there are none


def source_of(spec: ModelSpec) -> str:
    """Return a digest of everything that decides the weights, so that versions never mix."""
    overrides = sorted(spec.overrides.items())
    parts = repr((spec.model_path, spec.checkpoint, overrides, spec.version))
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def check_same(ours: Contract, theirs: Contract) -> None:
    """Raise InvalidRequest naming every difference."""
    differing = [
        field.name
        for field in fields(Contract)
        if getattr(ours, field.name) != getattr(theirs, field.name)
    ]
    if differing:
        named = "; ".join(
            f"{_SAID[name]}: {_told(ours, name)} here, {_told(theirs, name)} there"
            for name in differing
        )
        raise InvalidRequest(
            f"KV pages cannot be exchanged, as the servers differ ({named}): start both "
            "with the same flags and versions, and load the same version of the model",
            param=f"contract.{differing[0]}",
        )


def _told(contract: Contract, name: str) -> object:
    value = getattr(contract, name)
    return value or "none"
