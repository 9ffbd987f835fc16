"""When a request arrived, began and had its tokens."""

from model_server.engine.request import SequenceUpdate
from model_server.engine.types import RowResult
from model_server.serving.answers.request_account import RequestTimes
from model_server.serving.metrics.request_tally import BucketCounts, RequestTally

ARRIVED_S = 100.0


def token(read_s: float, started_s: float = 103.0) -> SequenceUpdate:
    return SequenceUpdate(1, RowResult(7), read_s=read_s, started_s=started_s)


def told(each: BucketCounts) -> tuple[int, float]:
    return each.count, round(each.sum, 6)


def test_a_request_is_divided_into_queue_prefill_and_decode() -> None:
    tally = RequestTally()
    times = RequestTimes(tally, ARRIVED_S)
    for read_s in (105.0, 105.25, 106.0):
        times.token(token(read_s), now_s=read_s + 0.5)
    times.succeed(107.0, prompt_tokens=9, answer_tokens=3, reason="length")
    assert times.queue_s == 3.0
    assert told(tally.queue) == (1, 3.0)
    assert told(tally.prefill) == (1, 2.0)
    assert told(tally.decode) == (1, 1.0)
    assert told(tally.computing) == (1, 3.0)
    assert told(tally.first_token) == (1, 5.5)
    assert told(tally.whole) == (1, 7.0)
    assert told(tally.interval) == (2, 1.0)
    assert told(tally.per_token) == (1, 0.5)
    assert told(tally.prompt_tokens) == (1, 9)
    assert told(tally.answer_tokens) == (1, 3)
    assert tally.ended == {"length": 1}


def test_tokens_of_one_step_have_no_time_between_them() -> None:
    tally = RequestTally()
    times = RequestTimes(tally, ARRIVED_S)
    for read_s in (104.0, 104.5, 104.5, 104.5):  # three tokens that were drafted or forced
        times.token(token(read_s), now_s=read_s)
    assert told(tally.interval) == (3, 0.5)


def test_a_prompt_that_another_server_computed_did_not_wait_here() -> None:
    tally = RequestTally()
    times = RequestTimes(tally, ARRIVED_S)
    times.token(token(0.0, 0.0), now_s=104.0)  # no step of this server's gave it
    times.token(token(104.5), now_s=105.0)
    assert times.queue_s == 0.0
    assert told(tally.queue) == (0, 0.0)
    assert told(tally.prefill) == (0, 0.0)
    assert told(tally.interval) == (1, 0.5)


def test_a_request_without_an_answer_only_says_how_it_ended() -> None:
    tally = RequestTally()
    RequestTimes(tally, ARRIVED_S).end("refused")
    RequestTimes(tally, ARRIVED_S).succeed(101.0, 0, 0, "score")
    assert tally.ended == {"refused": 1, "score": 1}
    assert told(tally.decode) == told(tally.prompt_tokens) == (0, 0.0)


def test_an_answer_that_was_begun_elsewhere_has_the_mean_time_of_its_tokens_here() -> None:
    tally = RequestTally()
    times = RequestTimes(tally, ARRIVED_S)
    for read_s in (104.0, 106.0):
        times.token(token(read_s), now_s=read_s)
    times.succeed(107.0, prompt_tokens=9, answer_tokens=300, reason="stop")
    assert told(tally.per_token) == (1, 2.0)
    assert told(tally.answer_tokens) == (1, 300)
