"""Saxml's Python API, names and tuples as Saxml's users know them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import sax
from sax.errors import InvalidName, InvalidRequest, ModelNotFound, UnsupportedParameter
from sax.saxml import compat
from tests.sax.client.test_blocking_client import Cell
from tests.sax.conftest import MODEL


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    cell = Cell()
    monkeypatch.setenv("SAX_ADMIN", cell.admin.address)
    yield cell
    compat._client_at(cell.admin.address).close()
    compat._client_at.cache_clear()
    cell.close()


def test_the_public_names_are_these() -> None:
    assert set(sax.__all__) == {
        *("Publish", "Unpublish", "Update", "List", "ListDetail", "ListAll", "Stats"),
        *("WaitForReady", "GetACL", "SetACL", "AdminOptions", "Options", "ModelOptions"),
        *("Model", "ModelDetail", "ModelServerTypeStat", "Client", "AsyncClient", "WatchEvent"),
        *("SaxError", "CellId", "ModelId", "GenerateRequest", "JoinedServer", "Message"),
        *("ModelSpec", "PublishedModel", "ReplyOptions", "SamplingParams", "TokenChunk"),
    }
    assert all(getattr(sax, name) is not None for name in sax.__all__)
    assert set(sax.__all__) <= set(dir(sax))
    with pytest.raises(AttributeError, match="Publsh"):
        _ = sax.Publsh  # type: ignore[attr-defined]


def test_publish_list_update_unpublish_return_saxmls_values(cell: Cell) -> None:
    name = "/sax/test/new"
    sax.Publish(name, "llama", "/a", 1, {"A": "1"})
    assert sax.List(name) == ("llama", "/a", 0)
    sax.SetACL(name, "acl/all", "lm.generate")
    sax.SetACL(name, "acl/ops")
    sax.Update(name, "llama", "/b", 2)
    detail = sax.ListDetail(name)
    assert (detail.model, detail.ckpt, detail.max_replicas) == ("llama", "/b", 2)
    assert (detail.active_replicas, detail.overrides) == (0, {"A": "1"})
    assert sax.GetACL(name, "lm.generate") == "acl/all"
    assert sax.GetACL(name, "lm.score") == ""
    assert sax.GetACL(name) == "acl/ops"
    assert sax.GetACL(name, "all") == {"lm.generate": "acl/all"}
    assert sax.ListAll("/sax/test") == [MODEL, name]
    sax.Unpublish(name)
    with pytest.raises(ModelNotFound):
        sax.List(name)


def test_active_replicas_are_ready_ones(cell: Cell) -> None:
    sax.WaitForReady(MODEL, 1)
    assert sax.List(MODEL) == ("counter", "None", 1)
    (stat,) = sax.Stats("/sax/test")
    assert (stat.chip_type, stat.chip_topology, stat.num_replicas) == ("cpu", "1", 0)


def test_a_timeout_is_honoured(cell: Cell) -> None:
    options = sax.AdminOptions()
    assert options.timeout == -1
    options.timeout = 0.05
    with pytest.raises(sax.SaxError, match=r"0\.05 s"):
        sax.WaitForReady(MODEL, 2, options)


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


def test_one_key_has_one_kind_of_value() -> None:
    options = sax.ModelOptions()
    options.SetExtraInput("a", 1)
    options.SetExtraInput("a", 2)
    assert options.GetExtraInput("a") == 2.0
    with pytest.raises(InvalidRequest, match="another kind"):
        options.SetExtraInputString("a", "x")
    with pytest.raises(InvalidRequest, match="no number"):
        options.GetExtraInput("b")


def test_a_proxy_address_bypasses_the_admin(cell: Cell) -> None:
    options = sax.Options()
    options.proxy_addr = cell.replica.address
    assert sax.Model("/sax/test/unlisted", options).LM().Generate("ab") == [("ba", -1.5)]
    assert not cell.admin.calls


def test_an_option_that_is_not_supported_is_refused_by_name() -> None:
    options = sax.Options()
    options.num_conn = 3
    with pytest.raises(UnsupportedParameter, match="num_conn"):
        sax.Model(MODEL, options)


@pytest.mark.parametrize(
    "call",
    [
        lambda: sax.Model(MODEL).VM(),
        lambda: sax.Model(MODEL).AM(),
        lambda: sax.Model(MODEL).MM(),
        lambda: sax.GetACL("/sax/test"),
    ],
)
def test_what_is_not_served_says_so(cell: Cell, call: Callable[[], object]) -> None:
    with pytest.raises(UnsupportedParameter):
        call()


def test_a_malformed_name_is_refused() -> None:
    with pytest.raises(InvalidName):
        sax.Model("counter")
    with pytest.raises(InvalidName):
        sax.List("counter")
