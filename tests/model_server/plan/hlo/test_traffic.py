"""Traffic of programs, read from texts of the real compiler (hlo_samples.py)."""

from __future__ import annotations

import pytest

from model_server.plan.hlo.module import HloModule, parse
from model_server.plan.hlo.traffic import bytes_moved, collectives
from tests.each_case import each_case
from tests.model_server.plan.copies import large_copies
from tests.model_server.plan.hlo_samples import text_of

_MIB = 2**20


def _sample(name: str) -> HloModule:
    return parse(text_of(name))


def test_every_exchange_counts_once_and_in_a_loop_as_often_as_it_goes_round() -> None:
    found = {each.kind: each for each in collectives(_sample("exchanges"))}
    assert {kind: (each.bytes, each.times) for kind, each in found.items()} == {
        "all-reduce": (5 * 2 * _MIB, 5),
        "all-gather": (8 * _MIB, 1),  # what comes out
        "reduce-scatter": (8 * _MIB, 1),  # what goes in; the text has it as a fusion
        "all-to-all": (2 * _MIB, 1),
        "collective-permute": (2 * _MIB, 1),  # a start and a done
    }
    assert {each.group for each in found.values()} == {4}


def test_a_ring_of_four_sends_three_quarters_and_of_a_sum_twice_that() -> None:
    sent = {each.kind: each.sent / each.bytes for each in collectives(_sample("exchanges"))}
    assert sent == {
        "all-reduce": 1.5,
        "all-gather": 0.75,
        "reduce-scatter": 0.75,
        "all-to-all": 0.75,
        "collective-permute": 1.0,
    }


@each_case(
    "groups, size",
    [
        ("{{0,1},{2,3}}", 2),
        ("[2,16]<=[32]", 16),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['axis_0'=32] {'axis_0'}", 32),
        ("mesh['axis_0'=2,'axis_1'=16] {'axis_1'}", 16),
        ("mesh['axis_0'=4,'axis_1'=2] {'axis_0','axis_1'}", 8),
        ("mesh['axis_0'=8] {'axis_0':(2)4}", 4),
    ],
)
def test_every_way_of_writing_groups_is_read(groups: str, size: int) -> None:
    line = (
        f"  ROOT %r = f32[8,128]{{1,0}} all-reduce(%p), channel_id=1, replica_groups={groups}, x=1"
    )
    text = "\n".join(
        [
            "HloModule m, num_partitions=32",
            "ENTRY %main (p: f32[8,128]) -> f32[8,128] {",
            "  %p = f32[8,128]{1,0} parameter(0)",
            line,
            "}",
        ]
    )
    assert [each.group for each in collectives(parse(text))] == [size]


def test_of_a_pool_only_what_is_taken_and_written_in_place_counts() -> None:
    page = 256 * 128 * 2
    moved = bytes_moved(_sample("pages"))
    result, matrix = 1024 * 4096 * 4, 128 * 4096 * 4
    assert moved.written == result + page
    assert matrix + 5 * page <= moved.read < matrix + 5 * page + 1024  # and a few indices
    assert not large_copies(_sample("pages"), _MIB)


def test_a_pool_that_is_kept_beside_a_changed_one_is_copied_and_seen() -> None:
    pool = 1024 * 256 * 128 * 2
    found = large_copies(_sample("copied"), pool)
    assert [each.bytes for each in found] == [pool, pool]
    assert all(each.from_chip for each in found)  # it goes by way of the chip's own memory
    assert bytes_moved(_sample("copied")).written == 2 * pool


def test_a_loop_whose_length_is_data_counts_once_and_is_told() -> None:
    matrix = 16384 * 8192 * 4
    moved = bytes_moved(_sample("until"))
    assert moved.open_loops == pytest.approx(2 * matrix, abs=1024)
    assert moved.total == pytest.approx(4 * matrix, abs=1024)  # copied once, passed through once
    (copy,) = large_copies(_sample("until"), _MIB)
    assert copy.bytes == matrix
    assert not copy.from_chip


def test_a_kernel_counts_what_it_is_given_and_does_not_update_in_place() -> None:
    text = "\n".join(
        [
            "HloModule m",
            "ENTRY %main (q: f32[8,128], p: bf16[1024,128]) -> (f32[8,128], bf16[1024,128]) {",
            "  %q = f32[8,128]{1,0} parameter(0)",
            "  %p = bf16[1024,128]{1,0} parameter(1)",
            "  ROOT %k = (f32[8,128]{1,0}, bf16[1024,128]{1,0}) custom-call(%q, %p), "
            'custom_call_target="tpu_custom_call", output_to_operand_aliasing={{1}: (1, {})}',
            "}",
        ]
    )
    moved = bytes_moved(parse(text))
    assert (moved.read, moved.written) == (0, 0)
    assert moved.kernels == 2 * 8 * 128 * 4


# As v7x has them: an exchange on the SparseCore is a computation that a custom call runs.
_ON_THE_SPARSE_CORE = """HloModule step, num_partitions=8

%sum (rows: f32[8,4096]) -> f32[8,4096] {
  %rows = f32[8,4096]{1,0} parameter(0)
  ROOT %all-reduce = f32[8,4096]{1,0} all-reduce(%rows), replica_groups={{0,1,2,3,4,5,6,7}}
}

ENTRY %main (given: f32[8,4096]) -> f32[8,4096] {
  %given = f32[8,4096]{1,0} parameter(0)
  ROOT %call = f32[8,4096]{1,0} custom-call(%given), custom_call_target="x", \
called_computations={%sum}
}
"""


def test_an_exchange_on_the_sparse_core_counts_like_any() -> None:
    (found,) = collectives(parse(_ON_THE_SPARSE_CORE))
    rows = 8 * 4096 * 4
    assert (found.kind, found.bytes, found.group, found.times) == ("all-reduce", rows, 8, 1)
    moved = bytes_moved(parse(_ON_THE_SPARSE_CORE))
    assert (moved.read, moved.written) == (rows, rows)
