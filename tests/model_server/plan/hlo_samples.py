"""Small programs for TPUs and the texts that the compiler made of them.

The texts lie in hlo/: `python tests/model_server/plan/hlo_samples.py` from the repository writes
them anew with the installed libtpu, without what no reader looks at. Tests read them, so that what
the reader makes of a program does not change with the compiler.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("hlo")
_UNREAD = re.compile(r", (?:backend_config=.*|frontend_attributes=\{[^}]*\}|stack_frame_id=\d+)")


def text_of(name: str) -> str:
    """A program as the compiler wrote it, once."""
    return (FOLDER / f"{name}.txt").read_text()


def _exchanges() -> tuple[Callable[..., Any], list[Any]]:
    """Every kind of collective, one of them in a loop of five rounds, over four chips."""
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    mesh = _mesh()

    @partial(jax.shard_map, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    def exchanges(part: Any) -> Any:  # f32[1024, 512] of f32[4096, 512]
        part = lax.fori_loop(0, 5, lambda _, x: jnp.tanh(lax.psum(x, "x")), part)
        part = lax.ppermute(part, "x", [(n, (n + 1) % 4) for n in range(4)])
        gathered = jnp.sin(lax.all_gather(part, "x"))
        part = lax.psum_scatter(gathered, "x", scatter_dimension=0)
        return lax.all_to_all(part, "x", 0, 1, tiled=True).reshape(part.shape)

    return exchanges, [_shape(mesh, (4096, 512), jnp.float32, P("x"))]


def _pages() -> tuple[Callable[..., Any], list[Any]]:
    """A pool of 64 MiB: one page of it is written in place, four are read; and a matrix product."""
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    def pages(pool: Any, page: Any, place: Any, places: Any, matrix: Any) -> Any:
        pool = lax.dynamic_update_slice(pool, page[None], (place, 0, 0))
        read = pool[places].reshape(4 * 256, 128).astype(jnp.float32)
        return pool, jnp.tanh(read @ matrix)

    shape = partial(_shape, _mesh(), spec=P())
    return pages, [
        shape((1024, 256, 128), jnp.bfloat16),
        shape((256, 128), jnp.bfloat16),
        shape((), jnp.int32),
        shape((4,), jnp.int32),
        shape((128, 4096), jnp.float32),
    ]


def _copied() -> tuple[Callable[..., Any], list[Any]]:
    """A pool of 64 MiB that is kept as it was beside one with a page written."""
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    def copied(pool: Any, page: Any, place: Any) -> Any:
        return lax.dynamic_update_slice(pool, page[None], (place, 0, 0)), pool.swapaxes(0, 1)

    shape = partial(_shape, _mesh(), spec=P())
    return copied, [
        shape((1024, 256, 128), jnp.bfloat16),
        shape((256, 128), jnp.bfloat16),
        shape((), jnp.int32),
    ]


def _until() -> tuple[Callable[..., Any], list[Any]]:
    """A loop whose number of rounds is data, over a matrix that no chip's own memory holds."""
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import PartitionSpec as P

    def until(matrix: Any, rounds: Any) -> Any:
        return lax.fori_loop(0, rounds, lambda _, x: jnp.tanh(x + 1), matrix)

    shape = partial(_shape, _mesh(), spec=P())
    return until, [shape((16384, 8192), jnp.float32), shape((), jnp.int32)]


SAMPLES = {"exchanges": _exchanges, "pages": _pages, "copied": _copied, "until": _until}
_DONATED = {"pages": (0,)}


def _mesh() -> Any:
    import numpy as np
    from jax.sharding import Mesh

    from model_server.plan.topology import topology_of

    return Mesh(np.asarray(topology_of("v5e:2x2").devices), ("x",))


def _shape(mesh: Any, shape: tuple[int, ...], dtype: Any, spec: Any) -> Any:
    import jax
    from jax.sharding import NamedSharding

    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))


def compiled_text(name: str) -> str:
    """Compile it with the installed compiler and return the text."""
    import jax

    function, shapes = SAMPLES[name]()
    jitted = jax.jit(function, donate_argnums=_DONATED.get(name, ()))
    return jitted.lower(*shapes).compile().as_text() or ""


def _trimmed(text: str) -> str:
    head, *lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.endswith("{"))
    kept = [_UNREAD.sub("", line) for line in lines[first:]]
    return "\n".join([head, "", *kept, ""])


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    FOLDER.mkdir(exist_ok=True)
    for sample in SAMPLES:
        (FOLDER / f"{sample}.txt").write_text(_trimmed(compiled_text(sample)))
