"""Every kind of bad checkpoint ends in one clear reason; the server and its models stay up."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sax.client import Client
from tests.end_to_end.cell import MODEL_SERVER, Cell
from tests.model_server.checkpoints.tiny_folder import CHAT, tokenizer_json, write_json, write_tiny

GOOD, BAD = "/sax/test/good", "/sax/test/bad"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
ASKED = [{"role": "user", "content": "he"}]
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def good(cell: Cell, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cell]:
    """The shared cell with a tiny model ready."""
    folder = write_tiny(tmp_path_factory.mktemp("good") / "good")
    cell.publish(str(folder), model=GOOD, model_path="auto")
    yield cell
    cell.sax("unpublish", GOOD)


@pytest.fixture(autouse=True)
def unharmed(good: Cell) -> Iterator[None]:
    """Whatever a test published, the same process answers as before."""
    pid, before = good.pid(MODEL_SERVER), good.text("he", model=GOOD)
    yield
    assert good.alive(MODEL_SERVER)
    assert (good.pid(MODEL_SERVER), good.text("he", model=GOOD)) == (pid, before)


def refused(cell: Cell, checkpoint: Path, model_path: str = "auto") -> str:
    """Why it cannot be loaded, as whoever lists the model sees it."""
    with Client(cell.plan.admin_address) as client:
        name = f"{BAD}-{next(_NUMBERS)}"  # the last one's failure may still be told under its name
        client.publish(name, model_path, str(checkpoint), 1)
        try:
            told = cell.eventually(lambda: failure(client, name), "a reason")
        finally:
            client.unpublish(name)
    reason = told.partition("; retry")[0]
    assert "Error" not in reason  # in words, not by a Python class
    return reason


def failure(client: Client, name: str) -> str:
    """What ended the last load. Between two tries it is told so, and is the same."""
    (replica,) = client.list(name).replicas
    return replica.reason.partition("load failed: ")[2]


def with_tensors(folder: Path, **changes: np.ndarray | None) -> None:
    """Replace, add or (None) leave out tensors; `__` stands for a dot."""
    tensors = load_file(folder / WEIGHTS) | {
        name.replace("__", "."): numbers for name, numbers in changes.items()
    }
    save_file({n: t for n, t in tensors.items() if t is not None}, folder / WEIGHTS)


def with_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | changes)


# --- tensors --------------------------------------------------------------------------------------

DOWN = "model.layers.1.mlp.down_proj.weight"
TENSORS: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "missing": (
        lambda folder: with_tensors(folder, model__layers__1__mlp__down_proj__weight=None),
        ("lacks", DOWN),
    ),
    "extra": (
        lambda folder: with_tensors(folder, model__layers__7__lora=np.zeros(3, np.float32)),
        ("does not use", "model.layers.7.lora"),
    ),
    "misshapen": (
        lambda folder: with_tensors(
            folder, model__layers__1__mlp__down_proj__weight=np.zeros((12, 19), np.float32)
        ),
        (DOWN, "[12, 19]", "[12, 20]"),
    ),
    "of integers": (
        lambda folder: with_tensors(
            folder, model__layers__1__mlp__down_proj__weight=np.zeros((12, 20), np.int32)
        ),
        (DOWN, "I32", WEIGHTS),
    ),
}


@pytest.mark.nightly
def test_a_wrong_tensor_is_named_with_its_checkpoint(good: Cell, tmp_path: Path) -> None:
    unnamed: dict[str, str] = {}
    for number, (kind, (change, words)) in enumerate(TENSORS.items()):
        folder = write_tiny(tmp_path / f"bad-{number}")
        change(folder)
        reason = refused(good, folder)
        if not all(word in reason for word in (str(folder), *words)):
            unnamed[kind] = reason
    assert unnamed == {}


@pytest.mark.nightly
def test_a_truncated_file_is_named_with_the_tensor_that_is_cut(good: Cell, tmp_path: Path) -> None:
    """As the last line of `sax publish --wait` too."""
    folder = write_tiny(tmp_path / "bad")
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-100])
    reason = refused(good, folder)
    assert str(folder / WEIGHTS) in reason
    assert "truncated: tensor 'model." in reason
    assert str(len(whole) - 100) in reason
    result = good.sax("publish", BAD, "auto", str(folder), "1", "--wait")
    good.sax("unpublish", BAD)
    assert result.returncode == 1, result.stdout
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("sax: ")]
    assert reason in line


# --- configuration --------------------------------------------------------------------------------


@pytest.mark.nightly
def test_an_unknown_architecture_is_named(good: Cell, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "bad", model_type="mystery", architectures=["MysteryForAll"])
    reason = refused(good, folder)
    assert str(folder) in reason
    assert "mystery" in reason
    assert "llama" in reason


@pytest.mark.nightly
def test_another_family_than_the_checkpoints_is_refused_by_both_names(
    good: Cell, tmp_path: Path
) -> None:
    reason = refused(good, write_tiny(tmp_path / "bad"), model_path="gpt2")
    assert str(tmp_path / "bad") in reason
    assert "gpt2" in reason
    assert "llama" in reason


# --- tokenizer ------------------------------------------------------------------------------------


def larger_tokenizer() -> str:
    """One ordinary token more than the model has rows for."""
    whole = json.loads(tokenizer_json())
    vocabulary = whole["model"]["vocab"]
    for number in range(3):
        vocabulary[f"extra{number}"] = len(vocabulary)
    return json.dumps(whole)


@pytest.mark.nightly
def test_a_wrong_tokenizer_is_named(good: Cell, tmp_path: Path) -> None:
    unnamed: dict[str, str] = {}
    for number, (kind, (content, words)) in enumerate(
        {
            "a picture": (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", TOKENIZER),
            "other JSON": (b'{"weight_map": {"a": "b"}}', TOKENIZER),
            "cut JSON": (tokenizer_json().encode()[:2000], TOKENIZER),
            "too many tokens": (larger_tokenizer().encode(), "ids up to 264, its model 264 rows"),
        }.items()
    ):
        folder = write_tiny(tmp_path / f"bad-{number}")
        (folder / TOKENIZER).write_bytes(content)
        reason = refused(good, folder)
        if not (str(folder) in reason and words in reason):
            unnamed[kind] = reason
    assert unnamed == {}


# --- chat template --------------------------------------------------------------------------------


def with_template(folder: Path, template: str) -> Path:
    write_tiny(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["chat_template"] == CHAT
    write_json(folder / "tokenizer_config.json", settings | {"chat_template": template})
    return folder


@pytest.mark.nightly
def test_a_chat_template_that_does_not_parse_is_refused_at_the_publish(
    good: Cell, tmp_path: Path
) -> None:
    folder = with_template(tmp_path / "bad", "{% for m in messages %}{{ m.content")
    reason = refused(good, folder)
    assert str(folder / "tokenizer_config.json") in reason
    assert "chat template is wrong at line 1" in reason


@pytest.mark.nightly
def test_malicious_chat_templates_end_in_typed_errors_of_the_request(
    good: Cell, tmp_path: Path
) -> None:
    marker = tmp_path / "escaped"
    hostile = {
        "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "globals": f"{{{{ cycler.__init__.__globals__.os.system('touch {marker}') }}}}",
        "loop": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "string": "{{ 'x' * 10 ** 9 }}",
    }
    chosen = "".join(
        f"{{% if messages[0].content == '{name}' %}}{source}{{% endif %}}"
        for name, source in hostile.items()
    )
    good.publish(str(with_template(tmp_path / "bad", chosen)), model=BAD, model_path="auto")
    try:
        for name in hostile:
            reply = chat(good, [{"role": "user", "content": name}])
            assert reply.status_code == 400, reply.text
            assert "the model's chat template" in reply.json()["error"]["message"]
            assert "Traceback" not in reply.text
        assert chat(good, ASKED).status_code == 400  # an empty prompt
        assert good.text("he", model=BAD)  # without the template it serves
        assert not marker.exists()
    finally:
        good.sax("unpublish", BAD)


def chat(cell: Cell, messages: list[dict[str, str]]) -> httpx.Response:
    body = {"model": BAD, "messages": messages, "max_tokens": 2}
    return cell.http.post("/v1/chat/completions", json=body)


# --- pickles --------------------------------------------------------------------------------------


class Opens:
    """Leaves a trace when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.marker), "w"))


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        pytest.param("consolidated.00.pth", marks=pytest.mark.nightly),
        pytest.param("model.pt", marks=pytest.mark.nightly),
    ],
)
def test_a_pickle_is_refused_and_never_opened(good: Cell, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "unpickled"
    content = pickle.dumps(Opens(marker))
    pickle.loads(content).close()
    assert marker.exists(), "it would leave a trace"
    marker.unlink()
    folder = write_tiny(tmp_path / "bad")
    (folder / WEIGHTS).unlink()
    (folder / name).write_bytes(content)
    reason = refused(good, folder)
    assert str(folder) in reason
    assert name in reason
    assert "safetensors" in reason
    assert str(folder) in refused(good, folder / name)
    assert not marker.exists()
