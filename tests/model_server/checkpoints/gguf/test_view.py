"""Any region of any kind, in any order of rows, is what the whole has there."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from model_server.checkpoints.gguf.header import read_header
from model_server.checkpoints.gguf.kinds import KINDS
from model_server.checkpoints.gguf.view import PLAIN, JoinedView, Matrix
from model_server.checkpoints.tensor_file import TensorFile
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.gguf.test_kinds import blocks

ROWS, COLUMNS = 24, 512
BF16 = GGMLQuantizationType.BF16


def stored(path: Path, kind: GGMLQuantizationType, rows: int = ROWS) -> tuple[Matrix, np.ndarray]:
    """A file with one tensor, and its numbers."""
    if kind in PLAIN:
        numbers = np.random.default_rng(1).standard_normal((rows, COLUMNS)).astype(PLAIN[kind])
        data = numbers.view(np.uint8) if kind == BF16 else numbers
    else:
        data = blocks(kind, 1, rows * COLUMNS // KINDS[kind].size).reshape(rows, -1)
        numbers = dequantize(data, kind)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("t", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = TensorFile(path)
    return Matrix(read_header(file).tensors["t"], rows, COLUMNS), numbers


@st.composite
def parts(draw: st.DrawFn, size: int) -> slice:
    start = draw(st.integers(0, size))
    return slice(start, draw(st.integers(start, size)))


Stored = dict[GGMLQuantizationType, tuple[Matrix, np.ndarray]]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Of each kind a file's matrix, and its numbers."""
    place = tmp_path_factory.mktemp("kinds")
    return {kind: stored(place / f"{kind.name}.gguf", kind) for kind in (*PLAIN, *KINDS)}


EXAMPLES = settings(deadline=None, max_examples=25)


@pytest.mark.extended
@EXAMPLES
@given(rows=parts(ROWS), columns=parts(COLUMNS))
@each_case("kind", [*PLAIN, *KINDS])
def test_a_region_is_what_the_whole_has_there(
    every: Stored, kind: GGMLQuantizationType, rows: slice, columns: slice
) -> None:
    matrix, numbers = every[kind]
    found = matrix.read(rows, columns)
    assert found.dtype == matrix.dtype
    np.testing.assert_array_equal(found, numbers[rows, columns])


@EXAMPLES
@given(
    rows=st.lists(st.integers(0, ROWS - 1), unique=True).map(lambda rows: np.array(rows, int)),
    columns=parts(COLUMNS),
)
@each_case("kind", [*PLAIN, *KINDS])
def test_rows_come_in_the_order_asked_for(
    every: Stored, kind: GGMLQuantizationType, rows: np.ndarray, columns: slice
) -> None:
    matrix, numbers = every[kind]
    np.testing.assert_array_equal(matrix.read(rows, columns), numbers[rows][:, columns])


@EXAMPLES
@given(rows=parts(ROWS), columns=parts(COLUMNS // 32), order=st.permutations(range(ROWS)))
@each_case("kind", KINDS)
def test_packed_regions_are_what_the_whole_has_there(
    every: Stored, kind: GGMLQuantizationType, rows: slice, columns: slice, order: list[int]
) -> None:
    matrix, _ = every[kind]
    size = max(KINDS[kind].packing.block or 0, 32)
    columns = slice(columns.start * 32 // size * size, columns.stop * 32 // size * size)
    whole = matrix.read_packed(slice(0, ROWS), slice(0, COLUMNS)).dequantized()
    found = matrix.read_packed(rows, columns)
    assert found.values.shape == (rows.stop - rows.start, columns.stop - columns.start)
    if found.values.size:
        np.testing.assert_array_equal(found.dequantized(), whole[rows, columns])
        mixed = matrix.read_packed(np.array(order), columns)
        np.testing.assert_array_equal(mixed.dequantized(), whole[order][:, columns])


@EXAMPLES
@given(experts=parts(4), rows=parts(12), order=st.permutations(range(12)))
@each_case("kind", KINDS)
def test_packed_regions_of_joined_tensors_are_those_of_their_numbers(
    every: Stored, kind: GGMLQuantizationType, experts: slice, rows: slice, order: list[int]
) -> None:
    matrix, _ = every[kind]  # as [4, 6, columns]
    join = (matrix, matrix), (6, 6), (4, 12, COLUMNS), np.array(order), False
    view, all_columns = JoinedView(*join), slice(0, COLUMNS)
    assert view.packing() == KINDS[kind].packing
    if experts.start < experts.stop and rows.start < rows.stop:
        numbers = view.read_packed((slice(0, 4), slice(0, 12), all_columns)).dequantized()
        found = view.read_packed((experts, rows, all_columns)).dequantized()
        np.testing.assert_array_equal(found, numbers[experts, rows])
    joined = matrix.read_packed(slice(6, 12), all_columns).dequantized()
    second = view.read_packed((slice(1, 2), slice(0, 12), all_columns)).dequantized()[0]
    np.testing.assert_array_equal(second, np.concatenate([joined, joined])[order])


def test_tensors_of_several_kinds_are_joined_as_numbers(every: Stored) -> None:
    kinds = GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K
    (one, _), (other, _) = (every[kind] for kind in kinds)
    for joined, transposed in (((one, other), False), ((one, one), True)):
        view = JoinedView(joined, (ROWS, ROWS), (2 * ROWS, COLUMNS), None, transposed)
        assert view.packing() is None
        with pytest.raises(CheckpointError, match="is joined with others as numbers"):
            view.read_packed((slice(0, 1), slice(0, COLUMNS)))


def test_columns_that_cut_a_block_are_refused(tmp_path: Path) -> None:
    matrix, _ = stored(tmp_path / "x.gguf", GGMLQuantizationType.Q4_K)
    with pytest.raises(CheckpointError, match="tensor t is quantised in blocks of 32.*32 to 40"):
        matrix.read_packed(slice(0, 1), slice(32, 40))


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0])
def test_only_the_wanted_rows_are_read(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    """The file is cut short while it is open: the rows before the cut can still be read."""
    matrix, numbers = stored(tmp_path / "x.gguf", kind)
    with (tmp_path / "x.gguf").open("r+b") as file:
        file.truncate(matrix.tensor.offset + matrix.tensor.nbytes // 2)
    half = ROWS // 2
    np.testing.assert_array_equal(matrix.read(slice(3, half), slice(0, COLUMNS)), numbers[3:half])
    some = np.array([7, 2, 11])
    np.testing.assert_array_equal(matrix.read(some, slice(0, 40)), numbers[some][:, :40])
    for rows in (slice(0, half + 1), np.array([1, ROWS - 1])):
        with pytest.raises(CheckpointError, match="tensor 't'"):
            matrix.read(rows, slice(0, COLUMNS))


@pytest.mark.extended
@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q6_K])
def test_large_tensors_are_shared_among_threads(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    rows = 9_000  # more numbers than are read in one thread
    matrix, numbers = stored(tmp_path / "x.gguf", kind, rows)
    np.testing.assert_array_equal(matrix.read(slice(0, rows), slice(0, COLUMNS)), numbers)
    backwards = np.arange(rows)[::-1]
    np.testing.assert_array_equal(matrix.read(backwards, slice(8, 500)), numbers[::-1, 8:500])
