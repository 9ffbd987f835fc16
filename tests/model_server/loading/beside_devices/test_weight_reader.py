from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pytest

from model_server.checkpoints.opening import open_checkpoint
from model_server.loading.beside_devices.weight_reader import WeightReader
from model_server.loading.beside_devices.weight_reading import (
    DECODER,
    ENCODER,
    WeightReading,
    size_of,
)
from model_server.loading.weights import read_weights
from sax.errors import CheckpointError, ModelPathNotFound, NotFound, PermissionDenied, Unavailable
from tests.model_server.checkpoints.tiny_folder import write_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny")


def asked(folder: Path, **changes: object) -> WeightReading:
    whole = WeightReading(
        checkpoint=str(folder),
        size=size_of(str(folder)),
        model_path="auto",
        overrides={},
        stage=None,
        mesh=(1, 1, 1),
        first=0,
        count=10_000,
    )
    return msgspec.structs.replace(whole, **changes)


def one_device() -> list[Any]:
    return jax.devices()[:1]


def read(reader: WeightReader, request: WeightReading) -> list[np.ndarray]:
    planned = reader.plan(request, one_device())
    return list(map(np.asarray, reader.read(request, planned, lambda: True)))


def test_parts_of_a_model_are_together_what_a_whole_load_reads(folder: Path) -> None:
    reader = WeightReader([str(folder.parent)])
    whole = reader.plan(asked(folder), one_device())
    wanted = read_weights(whole.declared, open_checkpoint(str(folder)), lambda _: None)
    parts = [
        array
        for first in range(0, len(whole.declared), 3)
        for array in read(reader, asked(folder, first=first, count=3))
    ]
    assert len(parts) == len(wanted) > 10
    for found, array in zip(parts, wanted, strict=True):
        np.testing.assert_array_equal(found, np.asarray(array))


def test_a_stage_has_the_weights_of_its_layers_only(folder: Path) -> None:
    reader = WeightReader([str(folder)])
    stages = [
        reader.plan(asked(folder, overrides={"NUM_STAGES": "2"}, stage=stage), one_device())
        for stage in (0, 1)
    ]
    whole = reader.plan(asked(folder), one_device())
    assert len(stages[0].declared) < len(whole.declared)
    names = [{name for each in stage.declared for name in each.source.names} for stage in stages]
    assert names[0] & names[1] == {"model.embed_tokens.weight"}  # the head is tied to it
    assert names[0] | names[1] == whole.names
    request = asked(folder, overrides={"NUM_STAGES": "2"}, stage=1)
    assert len(read(reader, request)) == len(list(stages[1].leaves))


def test_nothing_is_read_without_a_root_or_outside_of_it(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PermissionDenied, match="started without --checkpoint_root"):
        WeightReader([]).plan(asked(folder), one_device())
    (tmp_path / "roots").mkdir()
    reader = WeightReader([str(tmp_path / "roots")])
    with pytest.raises(PermissionDenied, match="is not below"):
        reader.plan(asked(folder), one_device())
    link = tmp_path / "roots" / "link"
    link.symlink_to(folder)
    with pytest.raises(PermissionDenied, match="leads to"):
        reader.plan(asked(link), one_device())


def test_files_that_are_not_the_controllers_are_told_apart(folder: Path) -> None:
    reader = WeightReader([str(folder.parent)])
    with pytest.raises(NotFound, match=r"nowhere cannot be read: No such file"):
        reader.plan(asked(folder, checkpoint=f"{folder.parent}/nowhere"), one_device())
    (folder / ".download").write_text("hidden files do not count")
    files, size = size_of(str(folder))
    reader.plan(asked(folder), one_device())
    with pytest.raises(NotFound, match=rf"{size} bytes in {files} files here and 7 bytes in 1"):
        reader.plan(asked(folder, size=(1, 7)), one_device())


def test_a_model_path_of_another_server_is_not_found(folder: Path) -> None:
    with pytest.raises(ModelPathNotFound):
        WeightReader([str(folder)]).plan(asked(folder, model_path="mine"), one_device())


def test_a_file_that_changes_between_plan_and_reading_is_the_checkpoints_fault(
    folder: Path,
) -> None:
    reader = WeightReader([str(folder)])
    planned = reader.plan(asked(folder), one_device())
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match="model.safetensors"):
        reader.read(asked(folder), planned, lambda: True)


def test_reading_ends_when_nobody_wants_it_any_more(folder: Path) -> None:
    reader = WeightReader([str(folder)])
    planned = reader.plan(asked(folder), one_device())
    with pytest.raises(Unavailable, match="client is gone"):
        reader.read(asked(folder), planned, lambda: False)


def test_weights_are_planned_again_when_a_new_load_begins(folder: Path) -> None:
    reader = WeightReader([str(folder)])
    first = reader.plan(asked(folder, count=1), one_device())
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"vocab_size": 264', '"vocab_size": 265'))
    later = reader.plan(asked(folder, count=1), one_device())
    assert [each.shape for each in later.declared] != [each.shape for each in first.declared]


def test_a_reading_survives_the_wire(folder: Path) -> None:
    request = asked(folder, overrides={"DTYPE": '"float32"'}, stage=1)
    assert DECODER.decode(ENCODER.encode(request)) == request


def test_a_plan_of_some_weights_is_no_plan_of_all(folder: Path) -> None:
    reader = WeightReader([str(folder)])
    whole = reader.plan(asked(folder), one_device())
    some = reader.plan(asked(folder, first=2, count=2), one_device())
    assert some == replace(whole, declared=whole.declared[2:4])
