"""The command `sax plan`: its options become a request, and a plan takes no accelerator."""

from __future__ import annotations

import os
from typing import Any

import pytest

from model_server.plan import planner
from model_server.plan.__main__ import main
from model_server.plan.planner import PlanRequest
from sax.errors import Unavailable
from tests.each_case import each_case


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[PlanRequest]:
    """The requests that were made, in place of planning them."""
    requests: list[PlanRequest] = []

    def note(request: PlanRequest, report: Any) -> None:
        assert os.environ["JAX_PLATFORMS"] == "cpu"
        requests.append(request)
        raise Unavailable("enough")

    monkeypatch.setattr(planner, "make_plan", note)
    monkeypatch.setenv("JAX_PLATFORMS", "tpu")
    return requests


def test_every_word_reaches_the_plan(asked: list[PlanRequest]) -> None:
    words = ["Llama-3-8B", "--topology", "v5e:2x4", "--set", 'QUANTIZE="int8"', "--set", "A=1"]
    words += ["--slots", "8", "--max-context", "512", "--kv_cache_bytes", "9", "--full", "--json"]
    words += ["--page_size", "32", "--memory-limit-bytes", "99", "--model-path", "llama"]
    assert main([*words, "--context", "7"]) == 2
    (request,) = asked
    config = request.config
    assert (config.slots, config.page_size, config.max_context) == (8, 32, 512)
    assert (config.kv_cache_bytes, config.memory_limit_bytes) == (9, 99)
    assert request == PlanRequest(
        model="Llama-3-8B",
        topology="v5e:2x4",
        config=config,
        overrides={"QUANTIZE": '"int8"', "A": "1"},
        path="llama",
        chips=("v5e",),
        context=7,
        is_full=True,
    )


def test_a_name_that_looks_like_an_option_stays_a_name(asked: list[PlanRequest]) -> None:
    main(["--topology", "auto", "--chip", "v6e", "--", "--json"])
    (request,) = asked
    assert (request.model, request.topology, request.chips) == ("--json", "auto", ("v6e",))


@each_case("words", [["Llama-3-8B"], ["Llama-3-8B", "--topology", "auto", "--emit", "yaml"]])
def test_a_wrong_command_line_is_not_planned(asked: list[PlanRequest], words: list[str]) -> None:
    assert main(words) == 2
    assert not asked


def test_its_help_teaches_by_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "sax plan lm_cloud.LmCloudSpmd175B32Test --topology v5e:4x8" in text
    assert "Exit status: 0 fits, 1 does not fit" in " ".join(text.split())
