import json

import pytest

from http_gateway.openai.reply import (
    ChatEvents,
    CompletionEvents,
    Head,
    Transcript,
    chat_body,
    chat_logprobs,
    completion_body,
    completion_logprobs,
    stream_end,
    usage,
)
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


def test_a_chat_stream_opens_with_the_role_and_ends_with_the_reason():
    events = ChatEvents(HEAD, 2, include_usage=False)
    assert events(TokenChunk("é", (1,), prompt_tokens=4, completion_tokens=1)) == (
        CHAT + b'{"index":2,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}]}\n\n'
        + CHAT + '{"index":2,"delta":{"content":"é"},"logprobs":null,'
        '"finish_reason":null}]}\n\n'.encode()
    )  # fmt: skip
    assert events(TokenChunk('"\n', (2,), completion_tokens=2)) == (
        CHAT
        + b'{"index":2,"delta":{"content":"\\"\\n"},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert events(TokenChunk("", (3,), completion_tokens=3)) == b""
    assert not events.finished
    assert events(TokenChunk("", (4,), finish_reason="stop", completion_tokens=4)) == (
        CHAT + b'{"index":2,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
    )
    assert events.finished
    assert (events.prompt_tokens, events.completion_tokens) == (4, 4)


def test_an_answer_of_one_chunk_is_three_events():
    written = ChatEvents(HEAD, 0, include_usage=True)(TokenChunk("x", finish_reason="length"))
    events = [json.loads(line[6:]) for line in written.decode().split("\n\n")[:-1]]
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "x"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "length"]
    assert [event["usage"] for event in events] == [None, None, None]


def test_a_token_without_text_still_tells_its_logprobs():
    events = ChatEvents(HEAD, 0, include_usage=False)
    events(TokenChunk("x"))
    written = json.loads(events(TokenChunk("", (7,), (CHOSEN,)))[6:])
    assert written["choices"][0]["delta"] == {"content": ""}
    assert written["choices"][0]["logprobs"] == chat_logprobs((CHOSEN,))


def test_a_completion_stream_tells_text_and_reason_in_one_event():
    events = CompletionEvents(HEAD, 0, include_usage=False)
    assert events(TokenChunk("a")) == (
        COMPLETION + b'{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert events(TokenChunk("")) == b""
    assert events(TokenChunk("b", finish_reason="stop")) == (
        COMPLETION + b'{"index":0,"text":"b","logprobs":null,"finish_reason":"stop"}]}\n\n'
    )


def test_offsets_of_a_completion_stream_are_the_model_servers():
    """Only it knows which tokens have no text, or less than their own."""
    events = CompletionEvents(HEAD, 0, include_usage=False)
    first, second = (TokenLogprob(2, "</s>", b"</s>", -1.0, text_offset=n) for n in (0, 5))
    offsets = [
        json.loads(events(TokenChunk("a", (2,), (one,)))[6:])["choices"][0]["logprobs"]
        for one in (first, second)
    ]
    assert [one["text_offset"] for one in offsets] == [[0], [5]]


def test_a_stream_ends_with_its_usage_if_asked_and_done():
    assert stream_end(HEAD, "text_completion", None) == b"data: [DONE]\n\n"
    counts = usage([transcript(TokenChunk("a", prompt_tokens=1, completion_tokens=2))], 1)
    assert stream_end(HEAD, "text_completion", counts) == (
        COMPLETION + b'],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,'
        b'"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
        b"data: [DONE]\n\n"
    )


def transcript(*chunks: TokenChunk) -> Transcript:
    said = Transcript()
    for chunk in chunks:
        said.add(chunk)
    return said


def test_a_chat_body_is_openais_byte_for_byte():
    said = transcript(TokenChunk("a", prompt_tokens=3), TokenChunk("b", finish_reason="stop"))
    assert chat_body(HEAD, [said], usage([said], 1)) == (
        b'{"id":"id-1","object":"chat.completion","created":1700000000,"model":"smol\\"lm",'
        b'"system_fingerprint":null,"choices":[{"index":0,"message":{"role":"assistant",'
        b'"content":"ab","refusal":null},"logprobs":null,"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":0,"total_tokens":3,'
        b'"prompt_tokens_details":{"cached_tokens":0}}}'
    )


def test_a_completion_body_is_openais_byte_for_byte():
    said = transcript(TokenChunk("a", (7,), (CHOSEN,), finish_reason="length"))
    assert completion_body(HEAD, [said], usage([said], 1)) == (
        b'{"id":"id-1","object":"text_completion","created":1700000000,"model":"smol\\"lm",'
        b'"system_fingerprint":null,"choices":[{"index":0,"text":"a","logprobs":{"tokens":["a"],'
        b'"token_logprobs":[-1.0],"top_logprobs":[{"a":-1.0,"b":-2.0}],"text_offset":[0]},'
        b'"finish_reason":"length"}],'
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
