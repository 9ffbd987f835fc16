"""Saxml's requests, names and tuples as Saxml's users know them."""

from __future__ import annotations

import pytest

import sax
from sax.errors import ModelNotFound, UnsupportedParameter
from tests.sax.client.test_blocking_client import Cell
from tests.sax.conftest import MODEL


def test_generate_and_score_return_saxmls_values(cell: Cell) -> None:
    lm = sax.Model(MODEL).LM()
    assert lm.Generate("abc") == [("cba", -1.5)]
    assert lm.Score("a", ["b", "cd"]) == [-1.0, -2.0]


def test_embed_and_custom_return_saxmls_values(cell: Cell) -> None:
    assert sax.Model(MODEL).LM().Embed("abc") == [3.0, 0.5]
    options = sax.ModelOptions()
    options.SetExtraInput("a", 1)
    assert sax.Model(MODEL).CM().Custom(b"ab\xff", "rev", options) == b"rev:\xffba"
    assert cell.replica.extra == options.ToProto()
    assert cell.replica.lm_calls == ["Embed", "Custom"]


def test_a_stream_calls_back_until_last(cell: Cell) -> None:
    seen: list[tuple[bool, list[tuple[str, int, list[float]]]]] = []
    sax.Model(MODEL).LM().GenerateStream("hi", lambda last, items: seen.append((last, items)))
    assert seen == [
        (False, [("h", 0, [0.0])]),
        (False, [("i", 1, [-1.0])]),
        (True, []),
    ]
    text = ""
    for _, items in seen:
        for piece, prefix_len, _ in items:
            text = text[:prefix_len] + piece
    assert text == "hi"


def test_a_callback_that_raises_ends_the_stream(cell: Cell) -> None:
    cell.do(cell.replica.hold.clear)

    def refuse(last: bool, items: object) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError):
        sax.Model(MODEL).LM().GenerateStream("hi", refuse)


def test_extra_inputs_and_timeout_travel_with_the_request(cell: Cell) -> None:
    options = sax.ModelOptions()
    assert options.GetTimeout() == -1
    options.SetExtraInput("temperature", 0.5)
    options.SetExtraInputTensor("eos_id", [1.0, 2.0])
    options.SetExtraInputString("style", "plain")
    options.SetTimeout(20)
    assert options.GetExtraInput("temperature") == 0.5
    assert options.GetTimeout() == 20
    assert "temperature" in options.ToDebugString()
    sax.Model(MODEL).LM().Generate("abc", options)
    assert cell.replica.extra == options.ToProto()
    assert list(options.ToProto().tensors["eos_id"].values) == [1.0, 2.0]
    assert dict(options.ToProto().strings) == {"style": "plain"}


def test_a_proxy_address_bypasses_the_admin(cell: Cell) -> None:
    options = sax.Options()
    options.proxy_addr = cell.replica.address
    assert sax.Model("/sax/test/unlisted", options).LM().Generate("ab") == [("ba", -1.5)]
    assert not cell.admin.calls


def test_any_number_of_connections_is_taken(cell: Cell) -> None:
    options = sax.Options()
    options.num_conn = 3
    assert sax.Model(MODEL, options).LM().Generate("ab") == [("ba", -1.5)]


def test_custom_takes_saxmls_keywords_and_can_answer_with_a_status(cell: Cell) -> None:
    custom = sax.Model(MODEL).CM()
    assert custom.Custom(request=b"ab", method_name="rev") == b"rev:ba"
    assert custom.CustomNoException(request=b"ab", method_name="rev") == b"rev:ba"
    status = sax.Model("/sax/test/nosuch").CM().CustomNoException(b"ab", "rev")
    assert isinstance(status, sax.Status)
    assert status.code() is sax.StatusCode.NOT_FOUND


def test_the_classes_of_methods_have_saxmls_names() -> None:
    model = sax.Model(MODEL)
    assert isinstance(model.LM(), sax.LanguageModel)
    assert isinstance(model.VM(), sax.VisionModel)
    assert isinstance(model.AM(), sax.AudioModel)
    assert isinstance(model.MM(), sax.MultimodalModel)
    assert isinstance(model.CM(), sax.CustomModel)


def test_a_service_that_a_server_has_not_is_its_answer(cell: Cell) -> None:
    with pytest.raises(UnsupportedParameter, match="Method not found"):
        sax.Model(MODEL).VM().Classify(b"x")
    with pytest.raises(ModelNotFound):
        sax.Model("/sax/test/nosuch").AM().Recognize(b"x")
