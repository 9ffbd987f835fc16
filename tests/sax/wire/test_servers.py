"""Activity on the wire: what a server may send that makes no sense becomes nothing."""

import math

from sax.activity import IDLE, Activity
from sax.proto import common_pb2
from sax.wire.servers import decode_activity, encode_activity


def test_an_idle_model_takes_no_bytes() -> None:
    assert encode_activity(IDLE) is None
    assert decode_activity(common_pb2.Activity()) == IDLE


def test_every_field_has_its_place_in_the_message() -> None:
    message = common_pb2.Activity.DESCRIPTOR
    assert [field.name for field in message.fields] == list(Activity.__slots__)


def test_figures_that_make_no_sense_are_none() -> None:
    hostile = common_pb2.Activity(
        slots=-1, pages=5, first_token_s=math.inf, token_interval_s=math.nan
    )
    assert decode_activity(hostile) == Activity(pages=5)
