import json

from http_gateway.openai.completions import CompletionEvents
from http_gateway.openai.events import ChatEvents, stream_end
from http_gateway.openai.logprobs import chat_logprobs
from http_gateway.openai.reply import Head, Transcript, usage, usage_of
from http_gateway.openai.reply_schema import Shape
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
    events = ChatEvents(HEAD, 2, Shape())
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
        CHAT + b'{"index":2,"delta":{},"logprobs":null,"finish_reason":"stop",'
        b'"stop_reason":null,"seed":null}]}\n\n'
    )
    assert events.finished
    assert (events.prompt_tokens, events.completion_tokens) == (4, 4)


def test_an_answer_of_one_chunk_is_three_events():
    written = ChatEvents(HEAD, 0, Shape(include_usage=True))(
        TokenChunk("x", finish_reason="length")
    )
    events = [json.loads(line[6:]) for line in written.decode().split("\n\n")[:-1]]
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "x"},
        {},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, "length"]
    assert [event["usage"] for event in events] == [None, None, None]


def test_a_token_without_text_still_tells_its_logprobs():
    events = ChatEvents(HEAD, 0, Shape())
    events(TokenChunk("x"))
    written = json.loads(events(TokenChunk("", (7,), (CHOSEN,)))[6:])
    assert written["choices"][0]["delta"] == {"content": ""}
    assert written["choices"][0]["logprobs"] == chat_logprobs((CHOSEN,))


def test_a_completion_stream_tells_text_and_reason_in_one_event():
    events = CompletionEvents(HEAD, 0, Shape())
    assert events(TokenChunk("a")) == (
        COMPLETION + b'{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}\n\n'
    )
    assert events(TokenChunk("")) == b""
    assert events(TokenChunk("b", finish_reason="stop")) == (
        COMPLETION + b'{"index":0,"text":"b","logprobs":null,"finish_reason":"stop",'
        b'"stop_reason":null,"seed":null}]}\n\n'
    )


def test_offsets_of_a_completion_stream_are_the_model_servers():
    """Only it knows which tokens have no text, or less than their own."""
    events = CompletionEvents(HEAD, 0, Shape())
    first, second = (TokenLogprob(2, "</s>", b"</s>", -1.0, text_offset=n) for n in (0, 5))
    offsets = [
        json.loads(events(TokenChunk("a", (2,), (one,)))[6:])["choices"][0]["logprobs"]
        for one in (first, second)
    ]
    assert [one["text_offset"] for one in offsets] == [[0], [5]]


def test_a_stream_ends_with_its_usage_if_asked_and_done():
    assert stream_end(HEAD, "text_completion", None) == b"data: [DONE]\n\n"
    said = Transcript()
    said.add(TokenChunk("a", prompt_tokens=1, completion_tokens=2, cached_tokens=1))
    counts = usage([said], 1)
    assert stream_end(HEAD, "text_completion", counts) == (
        COMPLETION + b'],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,'
        b'"prompt_tokens_details":{"cached_tokens":1}}}\n\n'
        b"data: [DONE]\n\n"
    )


def read(written: bytes) -> list[dict[str, object]]:
    return [json.loads(line[6:]) for line in written.decode().split("\n\n")[:-1]]


def choices(written: bytes) -> list[dict[str, object]]:
    return [choice for event in read(written) for choice in event["choices"]]  # type: ignore[union-attr]


def test_the_last_event_of_a_choice_tells_what_stopped_it_and_its_seed():
    for kind in (ChatEvents, CompletionEvents):
        events = kind(HEAD, 0, Shape())
        first = choices(events(TokenChunk("a", seed=7)))
        last = choices(events(TokenChunk("", finish_reason="stop", stop_reason="END")))[-1]
        assert (last["finish_reason"], last["stop_reason"], last["seed"]) == ("stop", "END", 7)
        assert not any("seed" in choice for choice in first)


def test_the_last_event_tells_how_an_answer_breaks_its_schema():
    for kind in (ChatEvents, CompletionEvents):
        events = kind(HEAD, 0, Shape())
        events(TokenChunk("[1,1]"))
        why = "$: [1, 1] has non-unique elements"
        last = choices(events(TokenChunk("", finish_reason="stop", schema_violation=why)))[-1]
        assert (last["finish_reason"], last["schema_violation"]) == ("stop", why)


def test_tokens_of_reasoning_are_counted_among_the_others():
    shape = Shape(include_usage=True, continuous_usage=True)
    chunk = TokenChunk("a", (1,), prompt_tokens=4, completion_tokens=3, reasoning_tokens=2)
    events = ChatEvents(HEAD, 0, shape)
    assert read(events(chunk))[-1]["usage"] == usage_of(4, 3, 0, 2)
    assert usage([events, events], 1)["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert "completion_tokens_details" not in usage_of(4, 3, 0)


def test_every_event_counts_the_tokens_so_far_if_asked():
    shape = Shape(include_usage=True, continuous_usage=True)
    for kind in (ChatEvents, CompletionEvents):
        events = kind(HEAD, 0, shape)
        first = read(events(TokenChunk("a", (1,), prompt_tokens=4, completion_tokens=1)))
        second = read(events(TokenChunk("b", (2,), prompt_tokens=4, completion_tokens=2)))
        assert first[-1]["usage"] == usage_of(4, 1, cached=0)
        assert second[-1]["usage"] == usage_of(4, 2, cached=0)


def test_token_ids_come_with_their_text_and_the_prompts_first():
    shape = Shape(token_ids=True)
    chunks = TokenChunk("a", (1,), prompt_token_ids=(5, 6), seed=1), TokenChunk("", (2,))
    events = CompletionEvents(HEAD, 0, shape)
    first, second = (choices(events(chunk))[0] for chunk in chunks)
    assert (first["prompt_token_ids"], first["token_ids"], second["token_ids"]) == (
        [5, 6],
        [1],
        [2],
    )
    chat = ChatEvents(HEAD, 0, shape)
    role, content = read(chat(chunks[0]))
    assert role["prompt_token_ids"] == [5, 6]
    assert content["choices"][0]["token_ids"] == [1]  # type: ignore[index]
    assert choices(chat(chunks[1]))[0]["token_ids"] == [2]


def test_an_echoed_prompt_streams_its_logprobs_before_the_answers():
    start = TokenLogprob(7, "a", b"a", float("nan"))
    events = CompletionEvents(HEAD, 0, Shape(echoed_tops=1))
    (choice,) = choices(events(TokenChunk("ab", (8,), (RIVAL,), prompt_logprobs=(start, CHOSEN))))
    assert choice["logprobs"] == {
        "tokens": ["a", "a", "b"],
        "token_logprobs": [None, -1.0, -2.0],
        "top_logprobs": [None, {"a": -1.0}, {"b": -2.0}],
        "text_offset": [0, 0, 0],
    }
