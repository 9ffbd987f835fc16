"""Reading a compiled program's text. The programs are those of hlo_samples.py."""

from __future__ import annotations

import pytest

from model_server.plan.hlo.module import arrays_of, bits_of, parse, runs_of
from tests.each_case import each_case
from tests.model_server.plan.hlo_samples import text_of


@each_case(
    "shape, expected",
    [
        ("f32[8,128]{1,0:T(8,128)}", 4096),
        ("bf16[129,3,128,64]{2,3,1,0:T(8,128)(2,1)}", 129 * 3 * 128 * 64 * 2),
        ("f32[1000]{0:T(1024)}", 4096),  # padded to its tile
        ("s8[3,100]{1,0:T(8,128)(4,1)}", 8 * 128),
        ("f32[384,1]{0,1:T(1,128)}", 384 * 4),  # the first dimension is the fast one
        ("s4[64,128]{1,0:T(64,128)(8,1)E(4)}", 64 * 128 // 2),
        ("pred[16]{0}", 16),
        ("f32[]", 4),
        ("token[]", 0),
        ("(bf16[8,128]{1,0}, u32[]{:S(2)})", 8 * 128 * 2 + 4),
    ],
)
def test_an_array_takes_what_its_tiles_do(shape: str, expected: int) -> None:
    assert sum(array.bytes for array in arrays_of(shape)) == expected


def test_the_layout_says_in_which_memory_an_array_lies() -> None:
    in_hbm, on_chip = arrays_of("(f32[8,128]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)})")
    assert in_hbm.in_hbm
    assert not on_chip.in_hbm


@each_case("dtype, bits", [("bf16", 16), ("s8", 8), ("u4", 4), ("f8e4m3fn", 8), ("pred", 8)])
def test_numbers_have_the_bits_that_their_name_says(dtype: str, bits: int) -> None:
    assert bits_of(dtype) == bits


def test_a_program_is_read_with_its_loops_and_how_often_they_go_round() -> None:
    program = parse(text_of("exchanges"))
    assert program.partitions == 4
    assert program.entry.name == "main.6_spmd"
    assert program.entry.root.opcode == "reshape"
    times = {run.computation.name: (run.times, run.is_open) for run in runs_of(program)}
    assert times == {"main.6_spmd": (1, False), "wide.region_0.2_spmd.sunk": (5, False)}


def test_a_loop_whose_length_is_data_runs_once_and_says_so() -> None:
    runs = list(runs_of(parse(text_of("until"))))
    assert [(run.times, run.is_open) for run in runs] == [(1, False), (1, True)]


def test_what_an_instruction_takes_and_calls_is_read() -> None:
    program = parse(text_of("pages"))
    fusion = program.entry.by_name["gather_fusion"]
    assert fusion.operands[0] == "bitcast_dynamic-update-slice_fusion"
    called = program.called(fusion, "calls")
    assert called is not None
    assert called.parameters[0].arrays[0].dims == (1024, 256, 128)


def test_a_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(ValueError, match="ENTRY"):
        parse("HloModule nothing\n")


def test_a_hundred_thousand_lines_are_read() -> None:
    """In about a second: what grows with the square of the lines would meet the test's timeout."""
    lines = [
        f'  %add.{n} = f32[8,128]{{1,0:T(8,128)}} add(%p, %p), metadata={{op_name="x"}}'
        for n in range(100_000)
    ]
    head = "ENTRY %main (p: f32[8,128]) -> f32[8,128] {"
    text = "\n".join(["HloModule m", "", head, *lines, "}", ""])
    assert len(parse(text).entry.instructions) == 100_000
