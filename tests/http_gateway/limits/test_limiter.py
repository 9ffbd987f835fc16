"""The x-ratelimit headers, in OpenAI's words."""

from __future__ import annotations

from http_gateway.limits.allowance import Allowance
from http_gateway.limits.limiter import duration, limit_headers
from sax.auth.key_limits import KeyLimits
from tests.each_case import each_case


def test_headers_tell_the_limits_that_there_are_and_what_is_left() -> None:
    allowance = Allowance.fresh(KeyLimits(rpm=60, tpm=600), 0.0).begun().ended(700, 0.0)
    assert limit_headers(allowance) == [
        (b"x-ratelimit-limit-requests", b"60"),
        (b"x-ratelimit-remaining-requests", b"59"),
        (b"x-ratelimit-reset-requests", b"1s"),
        (b"x-ratelimit-limit-tokens", b"600"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"1m10s"),
    ]
    assert limit_headers(Allowance.fresh(KeyLimits(concurrent=1), 0.0)) == []


@each_case(
    "seconds, text",
    [(0, "0ms"), (0.0201, "21ms"), (1, "1s"), (1.5, "1.5s"), (360, "6m0s"), (3723, "1h2m3s")],
)
def test_a_time_is_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text
