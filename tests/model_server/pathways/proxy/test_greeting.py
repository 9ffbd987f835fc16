from __future__ import annotations

import pytest

from model_server.pathways.protocol import messages
from model_server.pathways.proxy.greeting import PROTOCOL, SERDES, Introduction, agreed, introduced
from sax.errors import InvalidRequest


def offer(least: tuple[int, int], most: tuple[int, int]) -> object:
    request = messages.GrpcGetVersionRequest()
    for version, (protocol, serdes) in ((request.min_version, least), (request.max_version, most)):
        version.protocol_version = protocol
        version.ifrt_serdes_version_number = serdes
    return request


def test_both_sides_agree_on_the_version_of_this_server() -> None:
    for most in ((PROTOCOL, SERDES), (PROTOCOL + 9, SERDES + 9)):
        version = agreed(offer((16, 1), most))
        assert version.protocol_version == PROTOCOL
        assert version.ifrt_serdes_version_number == SERDES


def test_an_older_client_writes_older_values() -> None:
    assert agreed(offer((16, 1), (PROTOCOL, 2))).ifrt_serdes_version_number == 2


def test_other_versions_are_refused_with_a_remedy() -> None:
    for least, most in (
        ((16, 1), (PROTOCOL - 1, 3)),
        ((PROTOCOL + 1, 1), (PROTOCOL + 2, 3)),
        ((16, SERDES + 1), (PROTOCOL, SERDES + 2)),
    ):
        with pytest.raises(InvalidRequest, match="use a jaxlib from 0.10 to 0.12"):
            agreed(offer(least, most))


def metadata(version: int = PROTOCOL, **values: object) -> object:
    made = messages.GrpcIfrtSessionMetadata()
    made.version.protocol_version = version
    for key, value in values.items():
        entry = made.initialization_data.attributes[key]
        field = {str: "string_value", int: "int64_value", float: "float_value"}[type(value)]
        setattr(entry, field, value.encode() if isinstance(value, str) else value)
    return made


def test_a_client_may_give_its_name_and_weight() -> None:
    assert introduced(metadata()) == Introduction("", 1.0)
    assert introduced(metadata(name="trainer", weight=4)) == Introduction("trainer", 4.0)
    assert introduced(metadata(weight=0.5)).weight == 0.5


def test_weights_have_limits() -> None:
    for weight in (0, -1, 65):
        with pytest.raises(InvalidRequest, match="above 0"):
            introduced(metadata(weight=weight))


def test_a_session_speaks_what_was_agreed_on() -> None:
    with pytest.raises(InvalidRequest, match="was agreed on"):
        introduced(metadata(version=PROTOCOL - 1))
