import pytest

from http_gateway.config import GatewayConfig, parse_flags
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


def test_flags_become_the_configuration():
    assert parse_flags([]) == GatewayConfig()
    flags = ["--host", "0.0.0.0", "--port", "0", "--admin", "h:1", "--saxml_generation", "1"]
    more = ["--request_timeout_s", "1.5", "--max_body_bytes", "10", "--max_held_requests", "7"]
    assert parse_flags([*flags, *more]) == GatewayConfig(
        host="0.0.0.0",
        port=0,
        admin="h:1",
        saxml_generation=1,
        request_timeout_s=1.5,
        max_body_bytes=10,
        max_held_requests=7,
    )


def test_the_generation_of_saxmls_replies_can_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("SAXML_GENERATION", "1")
    assert parse_flags([]).saxml_generation == 1
    assert parse_flags(["--saxml_generation", "2"]).saxml_generation == 2
    for wrong in ("3", "x"):
        monkeypatch.setenv("SAXML_GENERATION", wrong)
        with pytest.raises(SystemExit):
            parse_flags([])
        assert "--saxml_generation" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        "--log_format x",
        "--access_log x",
        "--port 70000",
        "--saxml_generation 3",
        "--max_body_bytes 0",
    ],
)
def test_a_wrong_flag_is_told_by_name(flags: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse_flags(flags.split())
    assert ended.value.code == 2
    assert flags.split()[0] in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse_flags(["--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert "/v1/chat/completions" in told
    assert "curl" in told
