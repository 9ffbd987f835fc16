"""What crosses the wire comes back as it was."""

import msgspec
import pytest
from msgspec.structs import replace

from model_server.disaggregation.handoff import (
    KvHandoff,
    decode_ask,
    decode_contract,
    decode_handoff,
    encode_ask,
    encode_handoff,
)
from model_server.engine.request import EngineRequest
from model_server.engine.types import RowResult, Sampling
from sax.errors import InvalidRequest
from sax.proto import prefill_pb2
from tests.model_server.disaggregation.test_contract import CONTRACT


def test_an_ask_carries_prompt_sampling_and_contract() -> None:
    engine_request = EngineRequest(
        prompt=(5, 8, 13),
        sampling=Sampling(
            0.5,
            40,
            0.25,
            seed=2**64 - 1,
            logprobs=20,
            repetition_penalty=1.5,
            logit_bias=((3, -100.0), (4, 2.5)),
            allowed=(3, 4, 5),
            min_tokens=2,
            ends=(7,),
        ),
        max_tokens=99,
        stop_ids=frozenset({4}),
    )
    message = encode_ask("/sax/test/m", CONTRACT, engine_request, key=2**62 - 1)
    assert message.model_key == "/sax/test/m"
    assert message.key == 2**62 - 1
    assert decode_contract(message.contract) == CONTRACT
    wanted = replace(engine_request, max_tokens=1, stop_ids=frozenset())
    assert decode_ask(message) == wanted


def test_an_ask_of_another_version_is_refused_by_name() -> None:
    message = prefill_pb2.PrefillRequest(sampling=msgspec.msgpack.encode(["warm"]))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        decode_ask(message)


def test_a_ticket_carries_the_first_token_and_its_rivals() -> None:
    first = RowResult(17, -0.5, ((17, -0.5), (3, -1.25)))
    handoff = KvHandoff(("10.0.0.1:5", "10.0.0.2:6"), 60.0, first)
    assert decode_handoff(encode_handoff(handoff)) == handoff
