"""Sets of compiled programs for tests, as small as they can be."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from msgspec.structs import replace

from model_server.checkpoints.orbax.folder import Folder
from model_server.engine.compiling import to_bytes
from model_server.engine.limits import EngineLimits
from model_server.programs.keys import Keys
from model_server.programs.manifest import Manifest, ProgramEntry
from model_server.programs.place import SetFolder
from model_server.programs.ready_programs import digest_of_text

KEYS = Keys(
    platform="tpu",
    chip="TPU v5 lite",
    machine="",
    jax="0.10.2",
    jaxlib="0.10.2",
    libtpu="0.0.52",
    flags={"XLA_FLAGS": "", "LIBTPU_INIT_ARGS": ""},
    mesh="1x1x2",
    hosts=1,
    devices_per_host=2,
    devices=("0 at 0,0,0 core 0", "1 at 1,0,0 core 0"),
)
LIMITS = EngineLimits(
    slots=2, pages=40, page_size=16, max_context=256, token_budget=64, max_logit_rows=2
)
MANIFEST = Manifest(
    model="tiny",
    overrides={},
    topology="v5e:1x2",
    weights="abc",
    keys=KEYS,
    limits=LIMITS,
    sax="1 (abc)",
    made_at="2026-01-01T00:00:00+00:00",
    made_by="somebody@somewhere",
)


def lowered(factor: int) -> jax.stages.Lowered:
    """A product with a factor, which is another program than one with another factor."""
    return jax.jit(lambda x: {"product": x * factor}).lower(jnp.arange(4))


def answer(program: Any) -> list[int]:
    return np.asarray(program(jnp.arange(4))["product"]).tolist()


def entry_of(name: str, text: str, body: bytes) -> ProgramEntry:
    return ProgramEntry(
        name=name,
        text=text,
        file=f"{text[:16]}.program",
        size=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        compile_s=1.0,
    )


def write_set(place: Path | str, *factors: int) -> tuple[SetFolder, Manifest]:
    """A finished set of such products."""
    folder, entries = SetFolder(Folder(str(place))), []
    for factor in factors:
        low = lowered(factor)
        body = to_bytes(low.compile())
        entries.append(entry_of(f"times {factor}", digest_of_text(low), body))
        folder.add(entries[-1].file, body)
    manifest = replace(MANIFEST, programs=tuple(entries))
    folder.finish(manifest, ())
    return folder, manifest
