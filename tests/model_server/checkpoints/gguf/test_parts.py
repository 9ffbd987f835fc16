"""A split GGUF file opens by any of its parts, and says which are missing or wrong."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from model_server.checkpoints.gguf.checkpoint import GgufCheckpoint
from model_server.checkpoints.opening import open_checkpoint
from model_server.checkpoints.roots import CheckpointRoots
from model_server.checkpoints.split_name import part_names
from model_server.plan.checkpoint.inspect import inspect
from sax.errors import CheckpointError
from tests.each_case import each_case
from tests.model_server.checkpoints.split_file import split_file


@pytest.fixture
def parts(gguf_file: Path, tmp_path: Path) -> list[Path]:
    return split_file(gguf_file, tmp_path / "split")


def test_it_is_the_whole_file_by_any_part_and_by_its_folder(
    parts: list[Path], gguf_file: Path
) -> None:
    assert len(parts) == 4
    with closing(open_checkpoint(str(gguf_file))) as whole:
        for path in (*parts, parts[0].parent):
            with closing(open_checkpoint(str(path))) as found:
                assert found.config == whole.config
                assert sorted(found.names()) == sorted(whole.names())
                assert found.tokenizer().serialized == whole.tokenizer().serialized
                for name in whole.names():
                    np.testing.assert_array_equal(found.read(name), whole.read(name))


def test_missing_parts_are_named(parts: list[Path]) -> None:
    parts[1].unlink()
    parts[3].unlink()
    for path in (parts[0], parts[0].parent):
        with pytest.raises(
            CheckpointError, match=r"one of 4 parts, and 2 .*m-00002-of-00004\.gguf, m-00004-of"
        ):
            open_checkpoint(str(path))


def test_a_part_under_another_name_is_refused(parts: list[Path], tmp_path: Path) -> None:
    alone = tmp_path / "alone.gguf"
    shutil.copy(parts[1], alone)
    with pytest.raises(CheckpointError, match=r"one of 4 parts.*NAME-00001-of-00004\.gguf"):
        GgufCheckpoint(alone)


def test_parts_in_the_wrong_order_are_refused(parts: list[Path], tmp_path: Path) -> None:
    parts[1].rename(tmp_path / "x")
    parts[2].rename(parts[1])
    (tmp_path / "x").rename(parts[2])
    with pytest.raises(CheckpointError, match=r"split\.no = 2 .*where its name says 1 and 4"):
        GgufCheckpoint(parts[0])


def test_a_part_of_another_checkpoint_is_refused(
    parts: list[Path], gguf_file: Path, tmp_path: Path
) -> None:
    shutil.copy(gguf_file, parts[2])
    with pytest.raises(CheckpointError, match=r"00003-of-00004\.gguf has split\.no = None"):
        GgufCheckpoint(parts[0])


def test_a_truncated_part_is_named(parts: list[Path]) -> None:
    whole = parts[2].read_bytes()
    parts[2].write_bytes(whole[: len(whole) - 64])
    with pytest.raises(CheckpointError, match=r"m-00003-of-00004\.gguf is truncated"):
        GgufCheckpoint(parts[0])


def test_inspection_lists_every_part_and_all_tensors(parts: list[Path], gguf_file: Path) -> None:
    whole = inspect(str(gguf_file))
    for path in (parts[2], parts[0].parent):
        report = inspect(str(path))
        assert [file.name for file in report.files] == [part.name for part in parts]
        assert sum(file.bytes for file in report.files) == sum(p.stat().st_size for p in parts)
        assert (report.stored, report.problems) == (whole.stored, [])


def test_a_link_among_the_parts_counts_as_what_it_leads_to(
    parts: list[Path], tmp_path: Path
) -> None:
    outside = tmp_path / "outside.gguf"
    parts[3].rename(outside)
    parts[3].symlink_to(outside)
    roots = CheckpointRoots([str(parts[0].parent)])
    with pytest.raises(CheckpointError, match=r"outside\.gguf, which is not below"):
        roots.check(str(parts[0]))
    GgufCheckpoint(parts[0]).close()


@each_case(
    "name",
    ["m.gguf", "m-00001-of-00001.gguf", "m-00000-of-00002.gguf", "m-00003-of-00002.gguf",
     "m-1-of-2.gguf", "m-00001-of-99999.gguf", "m-00001-of-00002.safetensors"],
)  # fmt: skip
def test_other_names_are_no_parts(name: str) -> None:
    assert part_names(name) == []
