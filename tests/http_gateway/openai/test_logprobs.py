import pytest

from http_gateway.openai.logprobs import chat_logprobs, completion_logprobs, prompt_logprobs
from http_gateway.openai.reply_schema import Shape
from sax.types import TokenLogprob

RIVAL = TokenLogprob(8, "b", b"b", -2.0)
CHOSEN = TokenLogprob(7, "a", b"a", -1.0, (TokenLogprob(7, "a", b"a", -1.0), RIVAL))


def test_chat_logprobs_name_token_and_rivals_with_their_bytes():
    assert chat_logprobs((CHOSEN,)) == {
        "content": [
            {
                "token": "a",
                "logprob": -1.0,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -1.0, "bytes": [97]},
                    {"token": "b", "logprob": -2.0, "bytes": [98]},
                ],
            }
        ],
        "refusal": None,
    }


def test_a_completion_always_tells_the_chosen_token_among_its_rivals():
    chosen = TokenLogprob(9, "c", b"c", -3.0, (RIVAL,), 4)
    assert completion_logprobs((chosen,)) == {
        "tokens": ["c"],
        "token_logprobs": [-3.0],
        "top_logprobs": [{"b": -2.0, "c": -3.0}],
        "text_offset": [4],
    }


@pytest.mark.parametrize("logprob", [float("-inf"), -1e30])
def test_a_token_that_cannot_be_has_a_finite_logprob(logprob: float):
    told = completion_logprobs((TokenLogprob(1, "a", b"a", logprob),))
    assert told["token_logprobs"] == [-9999.0]


def test_prompt_logprobs_are_vllms():
    """null first, then the token of the prompt and its rivals by id."""
    best = TokenLogprob(8, "b", b"b", -0.5, rank=1)
    next_best = TokenLogprob(6, "z", b"z", -0.75, rank=2)
    second = TokenLogprob(7, "a", b"a", -1.0, (best, next_best), rank=3)
    start = TokenLogprob(5, "x", b"x", float("nan"))
    assert prompt_logprobs((start, second), Shape(prompt_logprobs=1)) == [
        None,
        {
            "7": {"logprob": -1.0, "rank": 3, "decoded_token": "a"},
            "8": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        },
    ]


def test_tokens_are_named_by_their_ids_on_request():
    shape = Shape(tokens_as_ids=True)
    assert completion_logprobs((CHOSEN,), shape)["top_logprobs"] == [
        {"token_id:7": -1.0, "token_id:8": -2.0}
    ]
    assert chat_logprobs((CHOSEN,), shape)["content"][0]["token"] == "token_id:7"  # type: ignore[index]
