"""Flags and the variables that stand for them."""

import pytest

from http_gateway.config import GatewayConfig
from http_gateway.flags import parse_flags


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
