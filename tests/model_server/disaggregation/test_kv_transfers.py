"""Pages on their way through a real transfer server, on one device and on two."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from msgspec.structs import replace as msgspec_replace

from model_server.disaggregation.handed_pages import PageCount, PageNumbers
from model_server.disaggregation.kv_transfers import KvTransfers, TransferServer
from model_server.disaggregation.layer_set import block_sizes, layer_sets
from model_server.disaggregation.movable_pages import PageCopies
from model_server.engine.limits import WindowLimits
from model_server.kernels.pages import CacheShape, HeadShape, Pages, StateArray, allocate, overwrite
from sax.errors import Cancelled, DeadlineExceeded, Internal, ReplicaLost
from tests.model_server.engine.test_scheduler import limits_of

CACHE = CacheShape(layers=3, kv_heads=2, key_dim=4, value_dim=6)
# Two layers attend, one with heads of its own, one keeps nothing and two keep states.
MIXED = replace(
    CACHE,
    layers=5,
    states=(None, (StateArray((3, 2)), StateArray((5,))), None, (), (StateArray((7,)),)),
    others=(None, None, HeadShape(1, 8, 8), None, None),
)
NEAR = (False, True, True, False, True)
LIMITS = limits_of(page_size=8, max_context=128)
ROOM = PageCount(40, 9)


def pool(
    dtype: str = "float32",
    sharding: jax.sharding.Sharding | None = None,
    cache: CacheShape = CACHE,
) -> tuple[Pages, ...]:
    """A pool of 20 pages of every layer, in which every number is another."""
    rng = np.random.default_rng(0)

    def filled(leaf: jax.Array) -> jax.Array:
        numbers = rng.integers(-128, 127, leaf.shape).astype(leaf.dtype)
        return jax.device_put(numbers, leaf.sharding)

    where = None if sharding is None else lambda _: sharding
    return jax.tree.map(filled, allocate(cache, 20, 8, jnp.dtype(dtype), where))


class Side:
    """One server's pool, its compiled copies, and its transfers."""

    def __init__(self, pages: tuple[Pages, ...], window_layers: tuple[bool, ...] = ()) -> None:
        self.pages = pages
        self.sets = layer_sets(pages, window_layers)
        self.transfers = KvTransfers(
            TransferServer("127.0.0.1"), self.sets, gives=True, takes=True, room=ROOM
        )
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), pages
        )
        everywhere = jnp.zeros(5, jnp.int32).sharding
        if isinstance(placed := pages[0].keys.sharding, jax.sharding.NamedSharding):
            mesh = placed.mesh
            everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        last = jax.ShapeDtypeStruct((5,), jnp.int32, sharding=everywhere)
        state = SimpleNamespace(last_tokens=last)
        program: Any = SimpleNamespace(
            pages=shapes,
            state=state,
            everywhere=everywhere,
            overwrite=overwrite,
            window_layers=window_layers,
            limits=msgspec_replace(
                LIMITS, windows=WindowLimits(sliding=20 if window_layers else None)
            ),
        )
        self.copies = PageCopies(program, gives=True, takes=True)
        self.copies.compile()

    def offer(self, key: int, pages: tuple[int, ...], window_pages: tuple[int, ...] = ()) -> None:
        self.transfers.offer(key, self.copies.read(self.pages, PageNumbers(pages, window_pages)))

    def fetch(
        self, key: int, other: Side, pages: int, window_pages: int = 0, deadline_s: float = 30.0
    ) -> None:
        assert self.transfers.reserve(key, PageCount(pages, window_pages))
        self.transfers.fetch(key, other.transfers.addresses(), deadline_s)

    def take(self, key: int, pages: tuple[int, ...], window_pages: tuple[int, ...] = ()) -> None:
        numbers = PageNumbers(pages, window_pages)
        self.pages = self.copies.write(self.pages, self.transfers.take(key), numbers)


def check_moved(sides: tuple[Side, Side]) -> None:
    give, take = sides
    out, into = (3, 1, 17, 9, 5, 20, 2), (7, 8, 1, 19, 2, 3, 11)
    apart = ((), ())
    if any(each.windowed for each in give.sets):
        apart = ((4, 3, 18), (20, 1, 5))
    wanted = jax.tree.map(np.array, take.pages)
    for place, (new, old) in enumerate(zip(wanted, give.pages, strict=True)):
        source, target = apart if apart[0] and NEAR[place] else (out, into)
        for theirs, ours in zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True):
            theirs[list(target)] = np.asarray(ours)[list(source)]
    give.offer(5, out, apart[0])
    take.fetch(5, give, len(out), len(apart[0]))
    take.take(5, into, apart[1])
    for got, want in zip(jax.tree.leaves(take.pages), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
    assert give.transfers.offered > 0
    give.transfers.drop(5)
    assert give.transfers.offered == 0


@pytest.fixture(scope="module")
def sides() -> tuple[Side, Side]:
    give = Side(pool())
    return give, Side(jax.tree.map(lambda leaf: leaf + 1000, give.pages))


def test_pages_arrive_where_they_are_wanted_and_nowhere_else(sides: tuple[Side, Side]) -> None:
    check_moved(sides)


def test_pages_of_small_numbers_travel_with_their_scales() -> None:
    give = Side(pool("int8"))
    check_moved((give, Side(jax.tree.map(lambda leaf: -leaf, give.pages))))


def test_states_and_layers_of_other_shapes_travel_with_pages_of_their_own() -> None:
    give = Side(pool(cache=MIXED), NEAR)
    assert [(each.windowed, each.places, len(each.kinds)) for each in give.sets] == [
        (False, (0,), 1),
        (True, (1, 2, 4), 3),
    ]
    check_moved((give, Side(jax.tree.map(lambda leaf: leaf + 1000, give.pages), NEAR)))


def test_layers_of_equal_shapes_travel_in_one_array() -> None:
    give = Side(pool(cache=replace(MIXED, states=(), others=(None, None, *MIXED.others[2:]))))
    ((block,),) = [each.blocks(PageCount(4)) for each in give.sets]
    assert [jax.tree.leaves(kind)[0].shape[:2] for kind in block] == [(4, 4), (1, 4)]
    check_moved((give, Side(jax.tree.map(lambda leaf: leaf + 1000, give.pages))))


def test_pools_of_other_shapes_travel_together() -> None:
    """As those of a draft model, whose layers and heads are fewer."""
    transfers = Side(pool()).transfers
    pools = (pool(), pool(cache=replace(CACHE, layers=1, kv_heads=1, value_dim=0)))
    sides = [Side(each) for each in pools]
    copies, sets = [each.copies for each in sides], [*sides[0].sets, *sides[1].sets]
    both = KvTransfers(transfers._server, sets, gives=True, takes=True, room=ROOM)
    out = PageNumbers((3, 1, 17, 9, 5))
    given = [
        block for each, held in zip(copies, pools, strict=True) for block in each.read(held, out)
    ]
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(given)]
    both.offer(8, given)
    assert both.reserve(8, PageCount(len(out.pages)))
    both.fetch(8, both.addresses(), 30.0)
    for got, want in zip(jax.tree.leaves(list(both.take(8))), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)


def test_blocks_are_powers_of_two_without_padding() -> None:
    assert [block_sizes(count) for count in (1, 2, 3, 13, 64)] == [
        [1],
        [2],
        [2, 1],
        [8, 4, 1],
        [64],
    ]


def test_what_was_dropped_is_free_and_its_fetch_ends_with_an_error(
    sides: tuple[Side, Side],
) -> None:
    give, take = sides
    give.offer(6, (1, 2, 3))
    parts = give.transfers._offered[6]
    give.transfers.drop(6)
    assert all(part.is_deleted() for part in parts)
    with pytest.raises(ReplicaLost, match="deleted"):
        take.fetch(6, give, 3)
    check_moved(sides)  # neither side is harmed


def test_a_fetch_of_what_nobody_offers_ends_at_its_deadline(sides: tuple[Side, Side]) -> None:
    give, take = sides
    with pytest.raises(DeadlineExceeded, match="did not arrive"):
        take.fetch(999, give, 30, deadline_s=0.05)
    assert not take.transfers.reserve(1000, PageCount(30)), "what may yet arrive keeps its room"
    give.offer(999, tuple(range(1, 17)) + tuple(range(1, 15)))  # late, and of that size
    jax.block_until_ready(take.transfers._late[0][1])
    assert take.transfers.reserve(1000, PageCount(30))
    take.transfers.drop(1000)
    give.transfers.drop(999)


def test_room_is_bounded_and_comes_back(sides: tuple[Side, Side]) -> None:
    transfers = sides[1].transfers
    assert transfers.reserve(1, ROOM)
    assert not transfers.reserve(2, PageCount(1))
    transfers.drop(1)
    assert transfers.reserve(2, ROOM)
    transfers.drop(2)


def test_pages_that_are_dropped_while_they_come_are_not_kept(sides: tuple[Side, Side]) -> None:
    give, take = sides
    with pytest.raises(Cancelled):
        take.transfers.fetch(50, give.transfers.addresses(), 1.0)
    give.offer(51, (1, 2))
    assert take.transfers.reserve(51, PageCount(2))
    take.transfers.fetch(51, give.transfers.addresses(), 30.0)
    take.transfers.drop(51)
    with pytest.raises(Internal, match="did not fetch"):
        take.transfers.take(51)
    give.transfers.drop(51)
    assert take.transfers.reserve(52, ROOM)
    take.transfers.drop(52)


def test_many_dropped_offers_leave_nothing_in_the_transfer_server() -> None:
    give = Side(pool())
    for key in range(1, 200):
        give.offer(key, (1,))
        give.transfers.drop(key)
    assert len(give.transfers._dropped) <= 65
    give.offer(500, (1,))
    give.transfers.close()
    assert give.transfers.offered == 0
    give.offer(501, (1,))
    assert give.transfers.offered == 0


_ON_TWO = """
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tests.model_server.disaggregation.test_kv_transfers import Side, check_moved, pool
mesh = Mesh(jax.devices(), ("model",))
give = Side(pool(sharding=NamedSharding(mesh, PartitionSpec(None, "model"))))
take = Side(jax.tree.map(lambda leaf: leaf + 1000, give.pages))
assert len(give.pages[0].keys.sharding.device_set) == 2
check_moved((give, take))
print("moved")
"""


@pytest.mark.nightly
def test_each_device_moves_its_own_heads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ON_TWO],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "2", "NPROC": "16", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert "moved" in done.stdout, done.stderr
