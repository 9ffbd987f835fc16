"""What two servers must have alike, and that a difference is named."""

from dataclasses import replace

from model_server.disaggregation.contract import Contract, check_same, source_of
from sax.errors import InvalidRequest
from sax.types import ModelSpec
from tests.model_server.refusals import refusal

CONTRACT = Contract(
    source="abc",
    page_size=64,
    kv_dtype="float32",
    layers=2,
    kv_heads=4,
    key_dim=64,
    value_dim=64,
    mesh="data=1 model=4",
    hosts=2,
    jaxlib="0.10.2",
)
SPEC = ModelSpec(model_id="/sax/test/m", model_path="llama", checkpoint="/a", replicas=1)


def test_a_difference_is_refused_by_name() -> None:
    cases = [
        ("source", "abd", "weights: abc here, abd there"),
        ("page_size", 16, "page size: 64 here, 16 there"),
        ("kv_dtype", "int8", "type of cached keys and values"),
        ("layers", 3, "number of layers"),
        ("kv_heads", 2, "number of KV heads"),
        ("key_dim", 32, "size of a key"),
        ("value_dim", 0, "size of a value"),
        ("mesh", "data=2 model=2", "mesh: data=1 model=4 here, data=2 model=2 there"),
        ("hosts", 1, "number of hosts: 2 here, 1 there"),
        ("jaxlib", "0.11.0", "version of jaxlib"),
        ("draft", "1 layers", "pages of the draft model: none here, 1 layers there"),
    ]
    for name, value, said in cases:
        told = refusal(check_same, CONTRACT, replace(CONTRACT, **{name: value}))  # pyright: ignore
        assert (told.kind, told.param) == (InvalidRequest, f"contract.{name}"), told
        assert said in told.text
    check_same(CONTRACT, replace(CONTRACT))


def test_whatever_changes_the_weights_changes_the_source() -> None:
    others = [
        replace(SPEC, model_path="gemma"),
        replace(SPEC, checkpoint="/b"),
        replace(SPEC, overrides={"A": "1"}),
        replace(SPEC, version="0" * 32),
    ]
    assert len({source_of(spec) for spec in [SPEC, *others]}) == 5
    assert source_of(replace(SPEC, acls={"lm.generate": "me"}, replicas=3)) == source_of(SPEC)
    both = {"A": "1", "B": "2"}, {"B": "2", "A": "1"}
    assert len({source_of(replace(SPEC, overrides=each)) for each in both}) == 1
