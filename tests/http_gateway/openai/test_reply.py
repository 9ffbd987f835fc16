import json

from http_gateway.openai.events import ChatEvents
from http_gateway.openai.reply import Head, Transcript, best, chat_body, completion_body, usage
from http_gateway.openai.reply_schema import Shape
from sax.routed_experts import RoutedExpertIds
from sax.types import TokenChunk, TokenLogprob

HEAD = Head("id-1", 1700000000, 'smol"lm')
START = (
    b'data: {"id":"id-1","object":"%b","created":1700000000,"model":"smol\\"lm",'
    b'"system_fingerprint":null,"choices":['
)
CHAT = START % b"chat.completion.chunk"
COMPLETION = START % b"text_completion"

RIVAL = TokenLogprob(8, "b", b"b", -2.0)
CHOSEN = TokenLogprob(7, "a", b"a", -1.0, (TokenLogprob(7, "a", b"a", -1.0), RIVAL))


def transcript(*chunks: TokenChunk) -> Transcript:
    said = Transcript()
    for chunk in chunks:
        said.add(chunk)
    return said


def test_a_chat_body_is_openais_byte_for_byte():
    said = transcript(TokenChunk("a", prompt_tokens=3), TokenChunk("b", finish_reason="stop"))
    assert chat_body(HEAD, [said], usage([said], 1), Shape()) == (
        b'{"id":"id-1","object":"chat.completion","created":1700000000,"model":"smol\\"lm",'
        b'"system_fingerprint":null,"choices":[{"index":0,"message":{"role":"assistant",'
        b'"content":"ab","refusal":null},"logprobs":null,"finish_reason":"stop",'
        b'"stop_reason":null,"seed":null}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3,'
        b'"prompt_tokens_details":{"cached_tokens":0}}}'
    )


def test_a_completion_body_is_openais_byte_for_byte():
    said = transcript(TokenChunk("a", (7,), (CHOSEN,), finish_reason="length"))
    assert completion_body(HEAD, [said], usage([said], 1), Shape()) == (
        b'{"id":"id-1","object":"text_completion","created":1700000000,"model":"smol\\"lm",'
        b'"system_fingerprint":null,"choices":[{"index":0,"text":"a","logprobs":{"tokens":["a"],'
        b'"token_logprobs":[-1.0],"top_logprobs":[{"a":-1.0,"b":-2.0}],"text_offset":[0]},'
        b'"finish_reason":"length","stop_reason":null,"seed":null}],'
        b'"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0,'
        b'"prompt_tokens_details":{"cached_tokens":0}}}'
    )


def test_prompt_tokens_count_once_for_the_choices_of_one_prompt():
    """Two prompts of 3 and 5 tokens, two choices each, 10 tokens per choice."""
    choices = [
        transcript(TokenChunk("x", prompt_tokens=size, completion_tokens=10))
        for size in (3, 3, 5, 5)
    ]
    assert usage(choices, 2) == {
        "prompt_tokens": 8,
        "completion_tokens": 40,
        "total_tokens": 48,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_the_best_answers_are_those_with_the_highest_mean_logprob():
    """Of each prompt; a long answer may have the lowest sum and the highest mean."""
    scores = [(-4.0, 1), (-6.0, 3), (-3.0, 1), (-1.0, 2), (-8.0, 2), (0.0, 1)]
    said = [
        transcript(TokenChunk(str(place), score=score, completion_tokens=count))
        for place, (score, count) in enumerate(scores)
    ]
    chosen = best(said, Shape(n=2, best_of=3))
    assert ["".join(each.text) for each in chosen] == ["1", "2", "5", "3"]
    assert best(said, Shape(n=3, best_of=3)) == said


def test_what_was_asked_for_of_the_prompt_is_in_each_choice_or_once_for_a_chat():
    start = TokenLogprob(7, "a", b"a", float("nan"))
    said = transcript(
        TokenChunk("b", (8,), prompt_logprobs=(start, CHOSEN), prompt_token_ids=(7, 7), seed=3)
    )
    shape = Shape(prompt_logprobs=0, token_ids=True)
    counts = usage([said], 1)
    listed = [None, {"7": {"logprob": -1.0, "rank": 0, "decoded_token": "a"}}]
    completion = json.loads(completion_body(HEAD, [said], counts, shape))
    (choice,) = completion["choices"]
    assert (choice["prompt_logprobs"], choice["prompt_token_ids"]) == (listed, [7, 7])
    assert (choice["token_ids"], choice["seed"]) == ([8], 3)
    chat = json.loads(chat_body(HEAD, [said], counts, shape))
    assert (chat["prompt_logprobs"], chat["prompt_token_ids"]) == (listed, [7, 7])
    assert chat["choices"][0]["token_ids"] == [8]


def test_the_experts_of_tokens_end_a_choice_of_a_body_and_of_a_stream():
    found = RoutedExpertIds(bytes([1, 2, 0, 3]), 2, 1, 2, 1)
    chunk = TokenChunk("a", (7,), finish_reason="length", routed_experts=found)
    wanted = {"dtype": "uint8", "shape": [2, 1, 2], "data": "AQIAAw=="}
    said = transcript(chunk)
    for body in (chat_body, completion_body):
        (choice,) = json.loads(body(HEAD, [said], usage([said], 1), Shape()))["choices"]
        assert choice["routed_experts"] == wanted
    events = ChatEvents(HEAD, 0, Shape())(chunk).decode().split("\n\n")
    assert json.loads(events[-2][6:])["choices"][0]["routed_experts"] == wanted
