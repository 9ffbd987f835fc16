"""The curls of docs/how_to/kubernetes.md, sent to a gateway of generation 1, get its replies."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import httpx

from tests.demo_model import ROOT
from tests.http_gateway.fake_cell import FakeCell, published
from tests.k8s.page.shell import blocks, commands

PAGE = (ROOT / "docs" / "how_to" / "kubernetes.md").read_text()
MODEL = "/sax/test/spmd"


async def test_the_curls_are_answered_as_the_page_says(
    cell: FakeCell, http_1: httpx.AsyncClient
) -> None:
    curls = [words for text in blocks(PAGE) for words in commands(text) if words[0] == "curl"]
    replies = re.findall(r"^```json\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(curls) == len(replies) == 4
    for words, told in zip(curls, replies, strict=True):
        method, body = words[words.index("--request") + 1], words[words.index("--data") + 1]
        (path,) = [word.rpartition("/")[2] for word in words if word.startswith("${LB_IP}")]
        answer = await http_1.request(method, f"/{path}", json=json.loads(body))
        assert answer.status_code == 200
        assert _blank(answer.text) == _blank(told)
        if path == "publish":  # its two replicas get ready
            ready = published(MODEL, ready=2, replicas=2)
            cell.models[MODEL] = replace(ready, spec=cell.models[MODEL].spec)


def _blank(reply: str) -> str:
    """Without the text and the score that a model gives."""
    return re.sub(r'\[\n {12}".*",\n {12}.*\n', "[TEXT, SCORE", reply)
