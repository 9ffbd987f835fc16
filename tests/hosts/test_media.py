"""Answers about images and sounds: on one process, over two in lockstep, and in two stages."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import soundfile
from PIL import Image as Picture

from sax.types import Image, Message, SamplingParams, Sound
from tests.end_to_end.hearing_model import hearing_model
from tests.hosts.asking import load, tokens, unload
from tests.hosts.gang import Gang
from tests.model_server.checkpoints.tiny_folder import CHAT
from tests.model_server.loading.media.image_folder import folder_of
from tests.model_server.loading.media.test_rows_and_tiles import CONTROL
from tests.model_server.models.media.media_cases import images_of

pytestmark = [pytest.mark.timeout(1200), pytest.mark.nightly]

FLAGS = ("--slots=2", "--page_size=16", "--host_timeout_seconds=60", "--max_mixed_blocks=1")
SETTINGS: dict[str, Any] = {"DTYPE": "float32", "MAX_CONTEXT": 128}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
IMAGES, SOUNDS = ("llama4", "llava", "mistral3"), "qwen2_audio"


def model(case: str, folder: Path) -> str:
    """Write a case's folder with a chat template."""
    if case == SOUNDS:
        return str(hearing_model(folder))
    path = folder_of(folder, CONTROL[case], case)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHAT}))
    return path


def prompt(case: str) -> tuple[Message, ...]:
    """A question about two of the case's images, or of its sounds."""
    first, second = (sent(case, number) for number in range(2))
    return (Message("user", ("Compare", second, "to", first, "!")),)


def sent(case: str, number: int) -> Image:
    array, file = images_of(case)[number], io.BytesIO()
    if case == SOUNDS:
        soundfile.write(file, array, 16_000, format="WAV", subtype="PCM_16")
        return Sound(file.getvalue())
    Picture.fromarray(array).save(file, "PNG")
    return Image(file.getvalue())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    return {case: model(case, folder / case) for case in (*IMAGES, SOUNDS)}


def answers(folder: Path, hosts: int, models: dict[str, str], **overrides: Any) -> dict[str, Any]:
    """Greedy tokens of every model, to two equal requests beside each other."""
    found: dict[str, Any] = {}
    with Gang(folder, *FLAGS, "--cpu_devices=1", count=hosts) as gang:
        gang.wait_until_serving()
        for case, checkpoint in models.items():
            name = f"/sax/test/{case}"
            load(gang.address, name, "auto", checkpoint, **SETTINGS, **overrides)
            found[case] = tokens(gang.address, name, GREEDY, GREEDY, prompt=prompt(case))
            unload(gang.address, name)
        assert "compiled while serving" not in "".join(map(gang.logs, range(hosts)))
        gang.terminate(0)
        assert [gang.exit_code(host) for host in range(hosts)] == [0] * hosts
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, models: dict[str, str]) -> dict[str, Any]:
    return answers(tmp_path_factory.mktemp("alone"), 1, models)


@pytest.mark.parametrize("stages", [1, 2])
def test_two_hosts_answer_as_one_process_does(
    tmp_path: Path, alone: dict[str, Any], models: dict[str, str], stages: int
) -> None:
    found = answers(tmp_path, 2, models, NUM_STAGES=stages)
    assert all(len(each) == GREEDY.max_tokens for pair in alone.values() for each in pair)
    assert found == alone
