from __future__ import annotations

from typing import Any

import httpx

from http_gateway.config import GatewayConfig
from sax.storage.object_store import open_store
from tests.each_case import each_case
from tests.http_gateway.conftest import Connect

PATH = "/v1/files"
LINES = b'{"custom_id": "1"}\n'


async def upload(http: httpx.AsyncClient, content: Any = LINES, **fields: Any) -> httpx.Response:
    data = {"purpose": "batch", **fields}
    return await http.post(PATH, files={"file": ("in.jsonl", content)}, data=data)


async def test_a_file_is_kept_read_listed_and_deleted(keeping: httpx.AsyncClient):
    made = await upload(keeping)
    assert made.status_code == 200, made.text
    file = made.json()
    assert (file["bytes"], file["filename"], file["purpose"]) == (len(LINES), "in.jsonl", "batch")
    assert file["expires_at"] is None
    place = f"{PATH}/{file['id']}"
    assert (await keeping.get(place)).json() == file
    content = await keeping.get(f"{place}/content")
    assert content.content == LINES
    assert content.headers["content-length"] == str(len(LINES))
    assert (await keeping.get(PATH)).json()["data"] == [file]
    assert (await keeping.get(f"{PATH}?purpose=batch_output")).json()["data"] == []
    assert (await keeping.delete(place)).json()["deleted"]
    for path in (place, f"{place}/content"):
        assert (await keeping.get(path)).status_code == 404


async def test_a_file_may_have_a_time_to_live(keeping: httpx.AsyncClient):
    fields = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file = (await upload(keeping, **fields)).json()
    assert file["expires_at"] == file["created_at"] + 3600


@each_case(
    "fields, param",
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"nope": "1"}, "nope"),
        ({"expires_after[seconds]": "3600"}, "expires_after"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "5"},
            "expires_after[seconds]",
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "soon"},
            "expires_after[seconds]",
        ),
    ],
)
async def test_what_is_wrong_is_refused_by_name(
    fields: dict[str, str], param: str, keeping: httpx.AsyncClient
):
    reply = await upload(keeping, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


async def test_a_body_that_is_no_form_is_refused(keeping: httpx.AsyncClient):
    for body in ({"content": b"{}"}, {"data": {"purpose": "batch"}}):
        assert (await keeping.post(PATH, **body)).status_code == 400  # pyright: ignore[reportArgumentType]
    broken = {"content-type": "multipart/form-data; boundary=x"}
    reply = await keeping.post(PATH, content=b"--x\r\nnonsense", headers=broken)
    assert reply.status_code == 400
    no_file = await keeping.post(PATH, files={"purpose": (None, b"batch")})
    assert no_file.json()["error"]["param"] == "file"
    names = [("purpose", (None, b"batch"))] * 2
    assert (await keeping.post(PATH, files=names)).status_code == 400


async def test_a_file_may_be_larger_than_a_body_and_has_a_bound_of_its_own(connect: Connect):
    config = GatewayConfig(max_body_bytes=1000, max_file_bytes=200_000)
    http = connect(config, open_store("memory://"))
    assert (await upload(http, b"x" * 200_000)).status_code == 200
    refused = await upload(http, b"x" * 300_000)
    assert refused.status_code == 413
    assert "--max_file_bytes" in refused.json()["error"]["message"]


async def test_without_a_store_the_flag_is_named(http: httpx.AsyncClient):
    for reply in (await upload(http), await http.get(PATH), await http.get(f"{PATH}/file-1")):
        assert reply.status_code == 400
        assert "--files" in reply.json()["error"]["message"]


async def test_uploads_of_a_key_end_at_its_bytes(connect: Connect) -> None:
    http = connect(GatewayConfig(max_key_bytes=25), open_store("memory://"))

    first = await upload(http, b"x" * 20)
    assert (first.status_code, (await upload(http, b"x" * 5)).status_code) == (200, 200)
    refused = await upload(http, b"x")
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], "--max_key_bytes: delete some" in error["message"]) == ("file", True)
    await http.delete(f"/v1/files/{first.json()['id']}")
    made = [(await upload(http, b"x" * size)).status_code for size in (19, 1, 1)]
    assert made == [200, 200, 400]


async def test_an_operator_may_forbid_files_and_batches_and_keep_responses(
    connect: Connect,
) -> None:
    http = connect(GatewayConfig(batches="off"), open_store("memory://"))
    for method, path in (
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("DELETE", "/v1/files/file-1"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches/batch_1"),
    ):
        reply = await http.request(method, path)
        assert (reply.status_code, "--batches off" in reply.text) == (403, True)
    body = {"model": "smollm2", "input": "hi", "store": True}
    made = (await http.post("/v1/responses", json=body)).json()
    assert (await http.get(f"/v1/responses/{made['id']}")).status_code == 200
