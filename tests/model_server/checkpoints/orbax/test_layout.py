"""Whatever folder of a checkpoint is named, its arrays are found, and unfinished ones refused."""

from pathlib import Path

import pytest

from model_server.checkpoints.orbax.folder import Folder
from model_server.checkpoints.orbax.layout import find_layout, layout_of_file
from sax.errors import CheckpointError


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def _found(path: Path) -> str | None:
    layout = find_layout(Folder(str(path)))
    return layout and layout.arrays.url


@pytest.mark.parametrize("mark", ["_METADATA", "manifest.ocdbt", "params.w/.zarray", "w/zarr.json"])
def test_arrays_are_known_by_what_orbax_leaves_there(tmp_path: Path, mark: str) -> None:
    assert _found(tmp_path) is None
    _touch(tmp_path / mark)
    assert _found(tmp_path) == str(tmp_path)


@pytest.mark.parametrize("item", ["default", "params", "items", "state"])
def test_a_step_and_a_folder_of_steps_lead_to_the_same_arrays(tmp_path: Path, item: str) -> None:
    arrays = tmp_path / "100" / item
    _touch(arrays / "_METADATA")
    _touch(tmp_path / "99" / item / "_METADATA")
    for named in (tmp_path, tmp_path / "100", arrays):
        assert _found(named) == str(arrays)


def test_weights_come_before_a_training_state(tmp_path: Path) -> None:
    _touch(tmp_path / "7" / "params" / "_METADATA")
    _touch(tmp_path / "7" / "state" / "_METADATA")
    assert _found(tmp_path) == str(tmp_path / "7" / "params")


def test_steps_are_counted_not_sorted_as_text(tmp_path: Path) -> None:
    for step in ("checkpoint_9", "checkpoint_00000010"):
        _touch(tmp_path / step / "_METADATA")
    assert _found(tmp_path) == str(tmp_path / "checkpoint_00000010")


def test_the_configuration_may_lie_in_every_folder_of_the_checkpoint(tmp_path: Path) -> None:
    _touch(tmp_path / "5" / "default" / "_METADATA")
    layout = find_layout(Folder(str(tmp_path / "5")))
    assert layout is not None
    places = [tmp_path / "5" / "default", tmp_path / "5", tmp_path]
    assert [folder.url for folder in layout.beside] == list(map(str, places))


def test_a_folder_around_other_things_is_not_looked_at_for_a_configuration(tmp_path: Path) -> None:
    _touch(tmp_path / "mine" / "_METADATA")
    layout = find_layout(Folder(str(tmp_path / "mine")))
    assert layout is not None
    assert [folder.url for folder in layout.beside] == [str(tmp_path / "mine")]


def test_a_save_that_is_under_way_is_refused(tmp_path: Path) -> None:
    step = tmp_path / "5.orbax-checkpoint-tmp-17"
    _touch(step / "default" / "_METADATA")
    with pytest.raises(CheckpointError, match="incomplete Orbax checkpoint"):
        _found(step / "default")
    with pytest.raises(CheckpointError, match=r"5\.orbax-checkpoint-tmp-17"):
        _found(tmp_path)


def test_an_earlier_finished_step_is_taken_instead(tmp_path: Path) -> None:
    _touch(tmp_path / "5.orbax-checkpoint-tmp-17" / "default" / "_METADATA")
    _touch(tmp_path / "4" / "default" / "_METADATA")
    assert _found(tmp_path) == str(tmp_path / "4" / "default")


def test_parts_of_processes_that_were_never_merged_are_refused(tmp_path: Path) -> None:
    _touch(tmp_path / "ocdbt.process_0" / "manifest.ocdbt")
    with pytest.raises(CheckpointError, match=r"no manifest\.ocdbt to merge what its processes"):
        _found(tmp_path)


@pytest.mark.parametrize("place", ["", "state/", "checkpoint_7/", "checkpoint_7/state/"])
def test_one_msgpack_file_may_hold_all_arrays(tmp_path: Path, place: str) -> None:
    _touch(tmp_path / f"{place}checkpoint")
    layout = find_layout(Folder(str(tmp_path)))
    assert layout is not None
    assert (layout.arrays.path, layout.file) == (tmp_path / place, "checkpoint")


@pytest.mark.parametrize("item", ["state", "default", "params"])
def test_an_item_may_hold_plain_arrays(tmp_path: Path, item: str) -> None:
    arrays = tmp_path / "checkpoint_00000007" / item
    _touch(arrays / "mdl_vars.params.lm.final_ln.scale" / ".zarray")
    for named in (tmp_path, tmp_path / "checkpoint_00000007", arrays):
        assert _found(named) == str(arrays)


def test_a_msgpack_file_in_a_bucket_is_refused_with_the_remedy() -> None:
    with pytest.raises(CheckpointError, match="copy it to this machine"):
        layout_of_file(Folder("gs://bucket/run/checkpoint_7"), "checkpoint")
