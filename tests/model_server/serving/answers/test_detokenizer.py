"""Tokens become chunks: whole characters, counts, scores, stop strings."""

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from model_server.engine.types import Hypothesis, RowResult
from model_server.serving.answers.detokenizer import Detokenizer
from model_server.text.tokenizer import ByteTokenizer, HfTokenizer, Tokenizer
from sax.types import ReplyOptions, SamplingParams, TokenChunk, TokenLogprob
from tests.model_server.checkpoints.tiny_folder import tokenizer_json
from tests.model_server.examples import examples
from tests.model_server.text.every_tokenizer import KINDS, tokenizer_of

TOKENIZER = ByteTokenizer(256)


def answer(stop: tuple[str, ...] = (), logprobs: int | None = None) -> Detokenizer:
    return Detokenizer(TOKENIZER, b"abc", SamplingParams(stop=stop, logprobs=logprobs))


def push_all(made: Detokenizer, tokens: bytes, finish: str) -> list[TokenChunk]:
    """Every token of an answer that ends for this reason; stops where the answer does."""
    chunks: list[TokenChunk] = []
    for index, token in enumerate(tokens):
        last = index == len(tokens) - 1
        chunks.append(made.push(RowResult(token, -0.5), finish if last else None))
        if chunks[-1].finish_reason:
            break
    return chunks


def test_each_token_gives_a_chunk_with_usage_and_score_so_far() -> None:
    first, second = push_all(answer(), b"hi", "length")
    assert first == TokenChunk("h", (104,), (), None, 3, 1, -0.5)
    assert second == TokenChunk("i", (105,), (), "length", 3, 2, -1.0)


def test_a_character_of_several_tokens_leaves_when_it_is_whole() -> None:
    chunks = push_all(answer(), "é!".encode(), "length")
    assert [chunk.text for chunk in chunks] == ["", "é", "!"]


def test_a_character_that_stays_broken_shows_at_the_end() -> None:
    assert push_all(answer(), b"a\xc3", "length")[-1].text == "�"


def test_the_token_that_stops_has_no_text_but_counts() -> None:
    last = push_all(answer(), b"ok\x07", "stop")[-1]
    assert (last.text, last.token_ids, last.completion_tokens) == ("", (7,), 3)
    assert last.finish_reason == "stop"


def test_hypotheses_are_texts_of_their_own_and_the_best_is_the_answers() -> None:
    found = [Hypothesis((*b"ok", 7), -1.5, -1.0), Hypothesis((*b"\xc3no", 9), -4.0, -2.0)]
    chunk = answer().found(found)
    assert [each.text for each in chunk.hypotheses] == ["ok", "\ufffdno"]
    assert [each.stop_token_id for each in chunk.hypotheses] == [7, 9]
    assert (chunk.text, chunk.score, chunk.completion_tokens) == ("ok", -1.0, 3)
    shown = Detokenizer(
        TOKENIZER, b"", SamplingParams(), ReplyOptions(include_stop_str_in_output=True)
    )
    assert shown.found([Hypothesis(tuple(b"ok!"), -1.0, -1.0)]).text == "ok!"


def test_a_stop_string_that_spans_tokens_ends_the_answer_unseen() -> None:
    chunks = push_all(answer(stop=("END",)), b"abENDcd", "length")
    assert "".join(chunk.text for chunk in chunks) == "ab"
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].completion_tokens == 5


def test_text_held_back_leaves_when_the_answer_ends_otherwise() -> None:
    assert push_all(answer(stop=("END",)), b"abEN", "length")[-1].text == "EN"
    assert push_all(answer(stop=("END",)), b"abEN\x07", "stop")[-1].text == "EN"


def test_a_stop_string_completed_by_the_last_token_is_a_stop() -> None:
    last = push_all(answer(stop=("b",)), b"ab", "length")[-1]
    assert (last.text, last.finish_reason) == ("", "stop")


def test_logprobs_name_the_token_and_its_rivals() -> None:
    made = answer(logprobs=1)
    chunk = made.push(RowResult(104, -0.25, ((105, -0.125), (104, -0.25))), None)
    (named,) = chunk.logprobs
    assert (named.token_id, named.token, named.token_bytes, named.logprob) == (
        104,
        "h",
        b"h",
        -0.25,
    )
    assert [(rival.token, rival.logprob) for rival in named.top] == [("i", -0.125)]


def test_logprobs_of_zero_rivals_still_tell_the_chosen_token() -> None:
    (named,) = answer(logprobs=0).push(RowResult(104, -0.25), None).logprobs
    assert (named.token_id, named.top) == (104, ())


def test_without_logprobs_there_are_none() -> None:
    assert answer().push(RowResult(104, -0.25, ((1, -1.0),)), None).logprobs == ()


@given(st.text(min_size=1, max_size=20))
def test_the_pieces_add_up_to_the_text(text: str) -> None:
    chunks = push_all(answer(), text.encode(), "length")
    assert "".join(chunk.text for chunk in chunks) == text


LOGPROBS = SamplingParams(logprobs=0)


def chunks_of(made: Detokenizer, ids: list[int]) -> list[TokenChunk]:
    ends = [*[None] * (len(ids) - 1), "length"]
    return [made.push(RowResult(i, -0.5), end) for i, end in zip(ids, ends, strict=True)]


def test_an_answer_that_continues_a_text_keeps_its_first_space() -> None:
    texts: dict[str, tuple[str, bytes]] = {}
    for kind in ("bpe", "unigram", "converted, legacy", "byte level"):
        tokenizer = tokenizer_of(kind)
        prompt, ids = tokenizer.encode("went to the"), tokenizer.encode_continuation(" park.")
        chunks = chunks_of(Detokenizer(tokenizer, prompt, LOGPROBS), ids)
        named = [entry.token_bytes for chunk in chunks for entry in chunk.logprobs]
        texts[kind] = "".join(chunk.text for chunk in chunks), b"".join(named)
    assert texts == dict.fromkeys(texts, (" park.", b" park."))


def test_a_chats_answer_is_a_text_of_its_own() -> None:
    texts: dict[str, str] = {}
    for kind in ("bpe", "unigram", "converted, legacy"):
        tokenizer = tokenizer_of(kind)
        ids = tokenizer.encode("park.", add_bos=False)
        made = Detokenizer(tokenizer, tokenizer.encode("went to the"), LOGPROBS, own_text=True)
        texts[kind] = "".join(chunk.text for chunk in chunks_of(made, ids))
    assert texts == dict.fromkeys(texts, "park.")


@examples(
    st.sampled_from(list(KINDS)),
    st.lists(st.integers(0, 255), min_size=1, max_size=12),
    st.booleans(),
    few=100,
    many=1400,
)
def test_the_offset_of_a_token_is_the_length_of_the_text_before_it(
    kind: str, ids: list[int], own_text: bool
) -> None:
    """Also after control tokens, which have no text, and inside a character of several tokens."""
    tokenizer: Tokenizer = tokenizer_of(kind)
    made = Detokenizer(tokenizer, tokenizer.encode("the"), LOGPROBS, own_text=own_text)
    seen = 0
    for chunk in chunks_of(made, ids):
        (entry,) = chunk.logprobs
        assert entry.text_offset == seen
        seen += len(chunk.text)


def test_offsets_count_text_that_a_stop_string_holds_back() -> None:
    made = Detokenizer(TOKENIZER, b"abc", SamplingParams(stop=("bd",), logprobs=0))
    entries = [chunk.logprobs[0] for chunk in push_all(made, b"abc", "length")]
    assert [entry.text_offset for entry in entries] == [0, 1, 2]


def stopped(prompt: bytes, tokens: bytes, *sequence: int) -> list[TokenChunk]:
    return push_all(
        Detokenizer(TOKENIZER, prompt, SamplingParams(stop_sequence=sequence)), tokens, "length"
    )


def test_a_stop_sequence_ends_the_answer_and_stays_in_it() -> None:
    chunks = stopped(b"", b"abcabd", *b"ab")
    assert "".join(chunk.text for chunk in chunks) == "ab"
    assert (chunks[-1].finish_reason, chunks[-1].completion_tokens) == ("stop", 2)
    assert chunks[-1].score == -1.0


def test_one_token_of_a_stop_sequence_alone_ends_nothing() -> None:
    assert stopped(b"", b"bbaa", *b"ab")[-1].finish_reason == "length"


def test_a_stop_sequence_may_begin_in_the_prompt() -> None:
    assert stopped(b"xa", b"bcd", *b"ab")[-1].completion_tokens == 1


def test_text_held_back_leaves_with_the_stop_sequence() -> None:
    sampling = SamplingParams(stop=("bX",), stop_sequence=tuple(b"ab"))
    chunks = push_all(Detokenizer(TOKENIZER, b"", sampling), b"abc", "length")
    assert [chunk.text for chunk in chunks] == ["a", "b"]


def reply_of(reply: ReplyOptions, sampling: SamplingParams | None = None) -> Detokenizer:
    return Detokenizer(TOKENIZER, b"abc", sampling or SamplingParams(), reply, seed=5)


def test_the_first_chunk_tells_the_seed_and_the_prompts_tokens() -> None:
    made = reply_of(ReplyOptions(return_token_ids=True))
    first, second = push_all(made, b"hi", "length")
    assert (first.seed, first.prompt_token_ids) == (5, (97, 98, 99))
    assert (second.seed, second.prompt_token_ids) == (None, ())


def test_an_echo_comes_before_the_answer_and_moves_its_offsets() -> None:
    made = reply_of(ReplyOptions(echo=True), SamplingParams(logprobs=0, stop=("abc",)))
    first, second = push_all(made, b"hi", "length")
    assert (first.text, second.text) == ("abch", "i")  # and does not count as a stop string
    assert [chunk.logprobs[0].text_offset for chunk in (first, second)] == [3, 4]


def test_scores_of_the_prompt_come_as_they_are_made() -> None:
    made = reply_of(ReplyOptions(prompt_logprobs=1))
    scores = made.push(
        RowResult(target_logprobs=(-1.0,), target_ranks=(3,), target_tops=(((7, -0.5),),)), None
    )
    last = made.push(RowResult(120, -2.0, (), (-1.5,), (1,), (((99, -1.5),),)), "length")
    start, second = scores.prompt_logprobs
    assert math.isnan(start.logprob)
    assert (start.token, start.text_offset, start.rank, start.top) == ("a", 0, 0, ())
    best = TokenLogprob(7, "\x07", b"\x07", -0.5, rank=1)
    assert second == TokenLogprob(98, "b", b"b", -1.0, (best,), 1, 3)
    (third,) = last.prompt_logprobs
    assert (third.token, third.logprob, third.text_offset, third.rank) == ("c", -1.5, 2, 1)
    assert (scores.text, scores.finish_reason, last.text) == ("", None, "x")


def test_a_prompt_that_is_only_scored_ends_by_its_length() -> None:
    made = reply_of(ReplyOptions(prompt_logprobs=0, echo=True))
    last = made.push(
        RowResult(target_logprobs=(-1.0, -2.0), target_ranks=(1, 1), target_tops=((), ())), "score"
    )
    assert (last.text, last.finish_reason, last.completion_tokens) == ("abc", "length", 0)
    assert [entry.token for entry in last.prompt_logprobs] == ["a", "b", "c"]


def test_what_stopped_an_answer_is_told_and_kept_on_request() -> None:
    for include, text in ((False, "ab"), (True, "abEND")):
        reply = ReplyOptions(include_stop_str_in_output=include)
        chunks = push_all(reply_of(reply, SamplingParams(stop=("END",))), b"abENDcd", "length")
        assert "".join(chunk.text for chunk in chunks) == text
        assert chunks[-1].stop_reason == "END"
        chunks = push_all(reply_of(reply, SamplingParams(stop_token_ids=(33,))), b"ab!", "stop")
        assert "".join(chunk.text for chunk in chunks) == ("ab!" if include else "ab")
        assert chunks[-1].stop_reason == 33


def test_a_models_own_end_token_is_no_stop_reason() -> None:
    tokenizer = HfTokenizer(tokenizer_json(), eos=["<|stop|>"])
    (end,) = tokenizer.eos_ids
    for ignored in (False, True):
        made = Detokenizer(tokenizer, [end], SamplingParams(ignore_eos=ignored))
        assert made.push(RowResult(end, -0.5), "stop").stop_reason == (end if ignored else None)


def test_control_tokens_are_written_out_on_request() -> None:
    for kind, skip in itertools.product([kind for kind in KINDS if kind != "bytes"], (True, False)):
        tokenizer = tokenizer_of(kind)
        control = tokenizer.bos_id if tokenizer.bos_id is not None else 420
        ids = [*tokenizer.encode("It is"), control]
        reply = ReplyOptions(echo=True, skip_special_tokens=skip)
        made = Detokenizer(tokenizer, ids, SamplingParams(), reply)
        echoed = made.push(RowResult(), "score").text
        made = Detokenizer(tokenizer, ids, SamplingParams(), reply, own_text=True)
        answered = made.push(RowResult(control, -0.5), None).text.removeprefix(echoed)
        name = tokenizer.token_text(control)
        assert answered == ("" if skip else name), kind
        assert (name not in echoed) if skip else echoed.endswith(name), kind
