"""Changes of weights and their answers cross the wire as they are."""

import pytest

from sax.errors import InvalidName, InvalidRequest
from sax.proto import control_pb2
from sax.types import TokenChunk
from sax.weights import Pausing, ReplicaWeights, WeightAction, WeightChange, WeightRun
from sax.wire.tokens import decode_chunk, encode_chunk
from sax.wire.weights import decode_replica, decode_weights, encode_replica, encode_weights


def test_a_change_and_its_answer_are_read_as_they_were_written() -> None:
    change = WeightChange(
        model_id="/sax/test/m",
        action=WeightAction.UPDATE,
        source="shm:x",
        version="v2",
        expected="v1",
        partial=True,
        pausing=Pausing.KEEP,
    )
    assert decode_weights(encode_weights(change)) == change
    assert encode_weights(change, term=7).term == 7
    replica = ReplicaWeights("10.0.0.1:1", "v2", "paused", "why")
    assert decode_replica(encode_replica(replica)) == replica
    chunk = TokenChunk("a", (1, 2), weights=(WeightRun("", 1), WeightRun("v2", 1)))
    assert decode_chunk(encode_chunk(3, chunk)).weights == chunk.weights
    assert decode_chunk(encode_chunk(3, TokenChunk("a", (1,)))).weights == ()


def test_what_is_no_change_is_refused_by_name() -> None:
    ask = control_pb2.WeightsRequest
    assert decode_weights(ask(model_id="/sax/test/m", action="status")).pausing == "wait"
    with pytest.raises(InvalidRequest, match="action is 'melt': choose update"):
        decode_weights(ask(model_id="/sax/test/m", action="melt"))
    with pytest.raises(InvalidRequest, match="mode is 'later'"):
        decode_weights(ask(model_id="/sax/test/m", action="pause", pausing="later"))
    with pytest.raises(InvalidName):
        decode_weights(ask(model_id="m", action="pause"))
