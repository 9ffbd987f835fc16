"""Bad input gets a clear error and leaves everything running."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.cell import MODEL_SERVER, SMOLLM2, Cell


@pytest.fixture(autouse=True)
def still_serving(served: Cell) -> Iterator[None]:
    """Whatever a test sent, the model answers afterwards."""
    yield
    assert served.text("The sky is", max_tokens=2)
    assert served.alive(MODEL_SERVER)


def publish(cell: Cell, **fields: object) -> httpx.Response:
    body = {"model": "/sax/test/other", "model_path": "llama", "checkpoint": "None", "replicas": 1}
    return cell.http.post("/publish", json={**body, **fields})


def test_a_duplicate_publish_is_a_conflict(served: Cell) -> None:
    response = publish(served, model=SMOLLM2)
    assert response.status_code == 409
    assert SMOLLM2 in response.text


def test_an_unknown_model_is_told_the_nearest_known_one(served: Cell) -> None:
    for response in (
        served.complete("x", model="/sax/test/smolm"),
        served.http.post("/generate", json={"model": "/sax/test/smolm", "query": "x"}),
        served.http.request("GET", "/listcell", json={"model": "/sax/test/smolm"}),
    ):
        assert response.status_code == 404
        assert SMOLLM2 in response.text
    named = served.sax("generate", "/sax/test/smolm", "x")
    assert named.returncode == 1
    assert SMOLLM2 in named.stderr
    assert "Traceback" not in named.stderr


def test_an_unknown_model_path_is_told_the_nearest_known_one(served: Cell) -> None:
    response = publish(served, model_path="lama")
    assert response.status_code == 404
    assert "llama" in response.text


def test_a_malformed_name_is_told_how_names_are_written(served: Cell) -> None:
    response = publish(served, model="smollm2")
    assert response.status_code == 400
    assert "/sax/<cell>/<model>" in response.text


def test_a_body_that_is_not_json_or_lacks_a_field_is_told_so(served: Cell) -> None:
    broken = served.http.post(
        "/publish", content=b"{", headers={"content-type": "application/json"}
    )
    assert broken.status_code in (400, 422)
    missing = served.http.post("/publish", json={"model": "/sax/test/other"})
    assert missing.status_code == 422
    assert "model_path" in missing.text
    wrong = publish(served, replicas="many")
    assert wrong.status_code == 422
    assert "replicas" in wrong.text


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(served: Cell) -> None:
    response = served.complete("word " * 5000)
    assert response.status_code == 400
    numbers = [int(number) for number in re.findall(r"\d+", response.json()["error"]["message"])]
    assert 2048 in numbers
    assert any(number >= 5000 for number in numbers)


def test_a_parameter_that_is_not_honoured_is_refused_by_name(served: Cell) -> None:
    response = served.complete("x", num_beams=2)
    assert response.status_code == 400
    assert "num_beams" in response.text


def test_a_parameter_out_of_range_is_refused_by_name(served: Cell) -> None:
    response = served.complete("x", temperature=-1)
    assert response.status_code == 400
    assert "temperature" in response.text


def test_a_truncated_checkpoint_shows_its_reason_everywhere(
    served: Cell, gguf: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(gguf.read_bytes()[: 20 << 20])
    name = "/sax/test/cut"
    assert publish(served, model=name, checkpoint=str(cut)).status_code == 200
    try:
        waited = served.sax("wait", name, "--timeout", "100")
        assert waited.returncode == 1
        assert "cut.gguf" in waited.stderr
        assert "Traceback" not in waited.stderr
        # The status page shows what its JSON says.
        page = f"http://127.0.0.1:{served.plan.status_port}/status.json"
        for look in (
            lambda: served.sax("ls").stdout,
            lambda: served.sax("status").stdout,
            lambda: served.listed(name)["replicas"][0]["reason"],
            lambda: httpx.get(page, trust_env=False).text,
        ):
            # The admin tries again now and then; for that moment it says so instead.
            served.eventually(lambda look=look: "cut.gguf" in look(), "the reason", within_s=30)
        listed = served.http.request("GET", "/listcell", json={"model": name})
        assert listed.json()["active_replicas"] == 0
    finally:
        served.sax("unpublish", name)


def test_a_checkpoint_that_is_not_there_shows_its_reason(served: Cell) -> None:
    name = "/sax/test/absent"
    result = served.sax("publish", name, "llama", "/nowhere/absent.gguf", "--wait")
    try:
        assert result.returncode == 1
        assert "/nowhere/absent.gguf" in result.stderr
    finally:
        served.sax("unpublish", name)


def test_a_cell_that_is_not_there_is_told_in_one_line(served: Cell) -> None:
    result = served.sax("--admin", "127.0.0.1:9", "ls")
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "127.0.0.1:9" in result.stderr
