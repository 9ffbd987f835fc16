import pytest

from http_gateway.config import GatewayConfig
from sax.errors import InvalidRequest
from tests.each_case import each_case


@each_case(
    "wrong, flag",
    [
        ({"port": 65536}, "--port"),
        ({"saxml_generation": 3}, "--saxml_generation"),
        ({"request_timeout_s": 0.0}, "--request_timeout_s"),
        ({"request_timeout_s": float("nan")}, "--request_timeout_s"),
        ({"max_body_bytes": 0}, "--max_body_bytes"),
        ({"max_held_requests": 0}, "--max_held_requests"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_its_flag(wrong: dict[str, float], flag: str):
    with pytest.raises(ValueError, match=flag):
        GatewayConfig(**wrong)  # pyright: ignore[reportArgumentType]


def test_an_address_to_prefer_is_a_host_and_a_port():
    assert GatewayConfig(prefer="10.0.0.7:10001").prefer == "10.0.0.7:10001"
    with pytest.raises(InvalidRequest, match="--prefer"):
        GatewayConfig(prefer="10.0.0.7")


def test_the_default_port_is_saxmls():
    assert GatewayConfig().port == 8888
