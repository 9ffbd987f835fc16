"""A cell whose answers can be worked out by hand: the other user of the CellClient seam.

The size of a prompt is its number of characters or token ids (for a chat: of all contents, with
the bytes of its images).
Token i of an answer has the id size + seed + i and the text " <id>"; its log-probability is
minus id / 8, and its rivals are the ids above it, 1/8 less likely each. An answer has five
tokens ("stop") unless max_tokens is smaller ("length"). Answer k of a beam search has k + 1 tokens
like these, and the score -k / 4. A sample of saxml_generate is the
query reversed, with the sum of the numbers in the extra inputs as its score; it counts a token for
each character of the query and five more. The vector of an input is [its size, 1/2, -1/4]. A text
has a token for each character, its code point; 1 starts it. A sound of n bytes takes n / 100
seconds and says its language (or "xx", which is heard), then its prompt or its task.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from sax.activity import ServedPhase
from sax.canary import check_percent
from sax.chat import Image
from sax.client.routing import current_session
from sax.errors import (
    InvalidRequest,
    ModelExists,
    ModelNotFound,
    NotFound,
    SaxError,
    StaleRevision,
    UnsupportedParameter,
)
from sax.flags.last_lines import LogLine
from sax.names import ModelId, check_checkpoint, check_model_path
from sax.passes import ChatInput, Classified, Embedded, PairInput, PairScores, TokenScores
from sax.scaling import Scaling, settle
from sax.speech import (
    Segment,
    SpeechRequest,
    SpokenPart,
    TimedWord,
    TranscriptPart,
    TranscriptRequest,
)
from sax.types import (
    PLAIN_CHAT,
    Canary,
    ChatOptions,
    EmbedInput,
    Event,
    GenerateRequest,
    HypothesisText,
    JoinedServer,
    Message,
    ModelSpec,
    Overview,
    PublishedModel,
    ReplicaStatus,
    Rights,
    SamplingParams,
    SaxmlSamples,
    ServableStatus,
    TokenChunk,
    Tokenized,
    TokenLogprob,
    Version,
)
from sax.weights import ReplicaWeights, WeightChange
from sax.wire.extra_inputs import ExtraInputs, encode_extra_inputs, sampling_from_extra_inputs

LENGTH = 5
CONTEXT = 512

Answer = TypeVar("Answer")


def published(
    model_id: str = "/sax/test/smollm2", *, ready: int = 1, replicas: int = 1, reason: str = ""
) -> PublishedModel:
    """A model with `ready` loaded replicas; the others are loading for that reason."""
    status = [ServableStatus.LOADED] * ready + [ServableStatus.LOADING] * (replicas - ready)
    return PublishedModel(
        ModelSpec(model_id=model_id, model_path="llama", checkpoint="None", replicas=replicas),
        tuple(
            ReplicaStatus(f"127.0.0.1:{i}", one, "" if one is ServableStatus.LOADED else reason)
            for i, one in enumerate(status, start=1)
        ),
    )


def size(request: GenerateRequest) -> int:
    """The number of prompt tokens."""
    if isinstance(request.prompt, str):
        return len(request.prompt)
    return sum(_size_of(p) if isinstance(p, Message) else 1 for p in request.prompt)


def _size_of(message: Message) -> int:
    return message.characters + sum(len(image.data) for image in message.images)


def searched(request: GenerateRequest) -> TokenChunk:
    """The only chunk of a beam search."""
    first = size(request)
    answers = tuple(
        HypothesisText("".join(f" {first + i}" for i in range(k + 1)), (*range(k + 1),), -k / 4, k)
        for k in range(request.sampling.beam_size)
    )
    best = answers[0]
    ends = {"finish_reason": "stop", "stop_reason": best.stop_token_id, "seed": 0}
    return TokenChunk(best.text, best.token_ids, prompt_tokens=first, hypotheses=answers, **ends)  # pyright: ignore[reportArgumentType]


class FakeCell:
    """Implements CellClient; `failure` and `hold_after` make trouble on purpose."""

    def __init__(self, *models: PublishedModel) -> None:
        self.weight_changes: list[WeightChange] = []
        self.models = {model.spec.model_id: model for model in models}
        self.requests: list[GenerateRequest] = []
        self.by_token = False  # vectors and labels are of tokens
        self.embeds: list[tuple[str, Sequence[EmbedInput]]] = []
        self.offered: Sequence[PairInput] = ()
        self.pairs: tuple[Sequence[PairInput], Sequence[PairInput]] = ((), ())
        self.sounds: list[TranscriptRequest] = []
        self.speeches: list[SpeechRequest] = []
        self.sessions: list[str] = []  # of Saxml's requests
        self.saxml_requests: list[tuple[str, str, ExtraInputs | None]] = []
        self.timeouts: list[float | None] = []
        self.servers: tuple[JoinedServer, ...] = ()
        self.granted: Rights | None = Rights(publish=True)  # None: the admin does not tell
        self.kept_versions: dict[str, Sequence[Version]] = {}
        self.rolled_back: list[tuple[str, str]] = []
        self.logs: dict[str, list[LogLine]] = {}  # by server; "": of the admin server
        self.served: ServedPhase | None = None  # of every request; None: nobody tells
        self.lists = 0
        self.failure: SaxError | None = None  # raised instead of token `fail_at`
        self.fail_at = 0
        self.admin_failure: SaxError | None = None
        self.queue_s = 0.0  # that the first chunk of an answer tells
        self.hold_after: int | None = None  # so many tokens, then silence until released
        self.cut_short = False  # answers end without a finish reason
        self.said: Sequence[TokenChunk] = ()  # chunks of every answer, instead of those above
        self.chats: list[ChatOptions] = []  # of chats that were tokenized
        self.released = asyncio.Event()
        self.on_open: Callable[[], object] = bool
        self._loop: asyncio.AbstractEventLoop | None = None
        self.open_answers = 0
        self.opened: asyncio.Queue[str] = asyncio.Queue()  # model ids, as answers begin
        self.answer_closed = threading.Event()

    async def transcribe_stream(
        self, request: TranscriptRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[TranscriptPart, None]:
        self.sounds.append(request)
        self.timeouts.append(timeout_s)
        if self.failure is not None and self.fail_at == 0:
            raise self.failure
        duration, language = len(request.sound) / 100, request.language or "xx"
        yield TranscriptPart(duration=duration)
        said = request.prompt or ("translate" if request.translate else "transcribe")
        for number, text in enumerate((language, said)):
            if self.failure is not None and self.fail_at == number + 1:
                raise self.failure
            segment = Segment(
                start=number * 1.5,
                end=number * 1.5 + 1.25,
                text=f" {text}",
                tokens=(number, 300),
                seek=0,
                temperature=request.temperature,
                avg_logprob=-0.5,
                compression_ratio=1.25,
                no_speech_prob=0.125,
                words=(TimedWord(start=0.5, end=1.0, text=text),) if request.words else (),
            )
            yield TranscriptPart(segments=(segment,), language=language, duration=duration)

    async def speak_stream(
        self, request: SpeechRequest, timeout_s: float | None = None
    ) -> AsyncGenerator[SpokenPart, None]:
        """Say the words of a text as their letters: a token each, which last two frames."""
        self.speeches.append(request)
        self.timeouts.append(timeout_s)
        for number, word in enumerate(request.text.split(" ")):
            if self.failure is not None and self.fail_at == number:
                raise self.failure
            data = f" {word}" if number else word
            yield SpokenPart(
                data=data.encode(), tokens=len(data), frames=2 * len(data), duration=len(data) / 10
            )

    async def publish(
        self,
        model_id: str,
        model_path: str,
        checkpoint: str,
        replicas: int = 1,
        overrides: Mapping[str, str] | None = None,
        *,
        autoscaling: Scaling | None = None,
    ) -> None:
        ModelId.parse(model_id)
        check_model_path(model_path)
        check_checkpoint(checkpoint)
        if model_id in self.models:
            raise ModelExists(f"{model_id} is published already: update it")
        self.models[model_id] = PublishedModel(
            ModelSpec(
                model_id=model_id,
                model_path=model_path,
                checkpoint=checkpoint,
                replicas=replicas,
                overrides=dict(overrides or {}),
                autoscaling=settle(autoscaling, None, replicas),
            )
        )

    async def update(
        self,
        model_id: str,
        *,
        model_path: str | None = None,
        checkpoint: str | None = None,
        replicas: int | None = None,
        overrides: Mapping[str, str] | None = None,
        revision: int | None = None,
        autoscaling: Scaling | None = None,
        canary: float | None = None,
    ) -> None:
        model = await self.list(model_id)
        if revision not in (None, model.spec.revision):
            raise StaleRevision(
                f"{model_id} is at revision {model.spec.revision}", param="revision"
            )
        if canary is not None:
            tried = Canary(
                version="c" * 32,
                checkpoint=checkpoint or model.spec.checkpoint,
                overrides=overrides or {},
                percent=check_percent(canary),
            )
            self.models[model_id] = replace(model, spec=replace(model.spec, canary=tried))
            return
        spec = replace(
            model.spec,
            model_path=model_path or model.spec.model_path,
            checkpoint=checkpoint or model.spec.checkpoint,
            replicas=model.spec.replicas if replicas is None else replicas,
            overrides=model.spec.overrides if overrides is None else overrides,
            autoscaling=settle(autoscaling, model.spec.autoscaling, model.spec.replicas),
        )
        self.models[model_id] = replace(model, spec=spec)

    async def promote(self, model_id: str) -> str:
        """The canary's version is the model's."""
        model = await self._with_canary(model_id)
        assert model.spec.canary is not None
        version = model.spec.canary.version
        spec = replace(model.spec, version=version, canary=None)
        self.models[model_id] = replace(model, spec=spec)
        return version

    async def abort(self, model_id: str) -> str:
        model = await self._with_canary(model_id)
        self.models[model_id] = replace(model, spec=replace(model.spec, canary=None))
        return model.spec.version

    async def _with_canary(self, model_id: str) -> PublishedModel:
        model = await self.list(model_id)
        if model.spec.canary is None:
            raise InvalidRequest(f"{model_id} has no canary", param="model")
        return model

    async def rollback(self, model_id: str, version: str = "") -> str:
        await self.list(model_id)
        self.rolled_back.append((model_id, version))
        return version or "0" * 32

    async def change_weights(
        self, change: WeightChange, timeout_s: float | None = None
    ) -> Sequence[ReplicaWeights]:
        await self.list(change.model_id)
        self.weight_changes.append(change)
        return [ReplicaWeights("10.0.0.1:10001", change.version or "1", "serving")]

    async def events(
        self, model_id: str = "", *, before: int = 0, limit: int = 0
    ) -> Sequence[Event]:
        told = [
            Event(sequence=n, at_s=n, kind="update", model_id=model_id) for n in range(9, 0, -1)
        ]
        return [event for event in told if not before or event.sequence < before][:limit]

    async def versions(self, model_id: str) -> Sequence[Version]:
        spec = (await self.list(model_id)).spec
        if model_id not in self.kept_versions:
            return [
                Version(
                    version="0" * 32,
                    checkpoint=spec.checkpoint,
                    overrides=spec.overrides,
                    current=True,
                )
            ]
        return self.kept_versions[model_id]

    async def log(self, server: str = "") -> list[LogLine]:
        if server not in self.logs:
            raise NotFound(f"no model server {server}", param="server")
        return self.logs[server]

    async def phases(self, request_ids: Sequence[str]) -> dict[str, ServedPhase]:
        return {} if self.served is None else dict.fromkeys(request_ids, self.served)

    async def unpublish(self, model_id: str) -> None:
        await self.list(model_id)
        del self.models[model_id]

    async def list(self, model_id: str) -> PublishedModel:
        if self.admin_failure:
            raise self.admin_failure
        ModelId.parse(model_id)
        if model_id not in self.models:
            raise ModelNotFound(f"model {model_id} is not published", param="model")
        return self.models[model_id]

    async def list_all(self, cell: str | None = None) -> list[PublishedModel]:
        self.lists += 1
        if self.admin_failure:
            raise self.admin_failure
        return [m for name, m in self.models.items() if cell is None or name.startswith(f"{cell}/")]

    async def overview(self) -> Overview:
        return Overview(tuple(await self.list_all()), self.servers)

    async def rights(self) -> Rights:
        if self.granted is None:
            raise UnsupportedParameter("this admin server does not tell")
        return self.granted

    async def generate_to(
        self,
        request: GenerateRequest,
        sink: Callable[[TokenChunk], None],
        timeout_s: float | None = None,
    ) -> None:
        self.requests.append(request)
        self.timeouts.append(timeout_s)
        self._begin(request.model_id)
        try:
            if request.sampling.beam_size:
                sink(searched(request))
                return
            for chunk in self.said:
                await asyncio.sleep(0)
                sink(chunk)
            if self.said:
                return
            limit = min(request.sampling.max_tokens or LENGTH, LENGTH)
            for i in range(limit):
                await asyncio.sleep(0)  # as a real token, it comes on its own
                if self.failure and i == self.fail_at:
                    raise self.failure
                if i == self.hold_after:
                    await self.released.wait()
                sink(self._chunk(request, i, limit))
        finally:
            self.open_answers -= 1
            if not self.open_answers:
                self.answer_closed.set()

    async def embed_counted(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        timeout_s: float | None = None,
        *,
        dimensions: int = 0,
        prompt_name: str = "",
        takes_tokens: bool = False,
    ) -> Embedded:
        """The vector of an input of size n is [n, 1/2, -1/4], and of a prompt 7 in front.

        by_token: each of its n tokens has [place, 1/2].
        """
        self.embeds.append((model_id, inputs))
        sizes = [_size(each) + len(prompt_name) for each in inputs]

        def answer() -> Embedded:
            if dimensions not in (0, 2, 3):
                raise UnsupportedParameter(
                    f"dimensions is {dimensions}, but this model's vectors have 3",
                    param="dimensions",
                )
            if self.by_token and takes_tokens:
                tokens = [[[float(place), 0.5] for place in range(n)] for n in sizes]
                return Embedded([], sum(sizes), tokens)
            return Embedded([[float(n), 0.5, -0.25][: dimensions or 3] for n in sizes], sum(sizes))

        return await self._answer(model_id, timeout_s, answer)

    async def tokenize(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
        *,
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> tuple[Sequence[int], int]:
        """A text starts with 1 unless asked not to, a chat only if asked to."""
        is_text = isinstance(prompt, str)
        text = prompt if is_text else "".join(text for each in prompt for text in each.texts)
        start = [1] if (is_text if add_special_tokens is None else add_special_tokens) else []
        self.chats.append(chat)
        return await self._answer(model_id, timeout_s, lambda: ([*start, *map(ord, text)], CONTEXT))

    async def tokenize_texts(
        self,
        model_id: str,
        prompt: str | tuple[Message, ...],
        timeout_s: float | None = None,
        *,
        add_special_tokens: bool | None = None,
        chat: ChatOptions = PLAIN_CHAT,
    ) -> Tokenized:
        ids, most = await self.tokenize(
            model_id, prompt, timeout_s, add_special_tokens=add_special_tokens, chat=chat
        )
        return Tokenized(tuple(ids), most, tuple(map(_token_text, ids)))

    async def detokenize(
        self, model_id: str, ids: Sequence[int], timeout_s: float | None = None
    ) -> str:
        return await self._answer(model_id, timeout_s, lambda: "".join(map(_token_text, ids)))

    async def classify(
        self,
        model_id: str,
        inputs: Sequence[EmbedInput],
        timeout_s: float | None = None,
        *,
        takes_tokens: bool = False,
        candidates: Sequence[PairInput] = (),
    ) -> Classified:
        """Inputs of more than two characters are long; by_token: capital letters are NAMEs.

        Of candidates the first one is chosen.
        """
        sizes = [_size(each) for each in inputs]
        if candidates:
            self.offered = candidates
            labels = tuple(each if isinstance(each, str) else "seen" for each in candidates)
            chosen = [[1.0, *[0.0] * (len(candidates) - 1)] for _ in inputs]
            matched = Classified(labels, chosen, sum(sizes))
            return await self._answer(model_id, timeout_s, lambda: matched)
        if self.by_token and takes_tokens:
            found = [[_letter(*each) for each in enumerate(text)] for text in map(_plain, inputs)]
            labelled = Classified(("O", "B-NAME", "I-NAME"), [], sum(sizes), found)
            return await self._answer(model_id, timeout_s, lambda: labelled)
        scores = [[0.25, 0.75] if size > 2 else [0.5, 0.5] for size in sizes]
        return await self._answer(
            model_id, timeout_s, lambda: Classified(("short", "long"), scores, sum(sizes))
        )

    async def score_pairs(
        self,
        model_id: str,
        first: Sequence[PairInput],
        second: Sequence[PairInput],
        timeout_s: float | None = None,
    ) -> PairScores:
        """A pair scores a hundredth of the product of its lengths."""
        self.pairs = (first, second)
        firsts = [*first] * (len(second) if len(first) == 1 else 1)
        scores = [_size(a) * _size(b) / 100 for a, b in zip(firsts, second, strict=True)]
        tokens = sum(map(_size, (*firsts, *second)))
        return await self._answer(model_id, timeout_s, lambda: PairScores(scores, tokens))

    async def _answer(
        self, model_id: str, timeout_s: float | None, answer: Callable[[], Answer]
    ) -> Answer:
        self.timeouts.append(timeout_s)
        self._begin(model_id)
        try:
            if self.failure:
                raise self.failure
            if self.hold_after is not None:
                await self.released.wait()
            return answer()
        finally:
            self.open_answers -= 1
            if not self.open_answers:
                self.answer_closed.set()

    def release(self) -> None:
        """Let held answers go on; from any thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self.released.set)

    def _begin(self, model_id: str) -> None:
        self.open_answers += 1
        self._loop = asyncio.get_running_loop()
        self.opened.put_nowait(model_id)
        self.on_open()

    def _chunk(self, request: GenerateRequest, i: int, limit: int) -> TokenChunk:
        sampling = request.sampling
        first = size(request)
        token = first + (sampling.seed or 0) + i
        last = i == limit - 1
        stop = "length" if sampling.max_tokens == limit else "stop"
        return TokenChunk(
            text=f" {token}",
            token_ids=(token,),
            logprobs=()
            if sampling.logprobs is None
            else (_logprob(token, sampling.logprobs, i * len(f" {token}")),),
            finish_reason=stop if last and not self.cut_short else None,
            prompt_tokens=first,
            completion_tokens=i + 1,
            queue_s=0.0 if i else self.queue_s,
        )

    async def saxml_generate_counted(
        self,
        model_id: str,
        text: str,
        extra_inputs: ExtraInputs | None = None,
        timeout_s: float | None = None,
    ) -> SaxmlSamples:
        self.sessions.append(current_session())
        self.saxml_requests.append((model_id, text, extra_inputs))
        self.timeouts.append(timeout_s)
        self._begin(model_id)
        try:
            sampling_from_extra_inputs(encode_extra_inputs(extra_inputs or {}), SamplingParams())
            if self.failure:
                raise self.failure
            if self.hold_after is not None:
                await self.released.wait()
            numbers = [v for v in (extra_inputs or {}).values() if isinstance(v, int | float)]
            return SaxmlSamples([(text[::-1], float(sum(numbers)))], len(text), LENGTH)
        finally:
            self.open_answers -= 1
            if not self.open_answers:
                self.answer_closed.set()


def _token_text(token: int) -> str:
    """Return the character; ids that are none come as the replacement character."""
    return "<s>" if token == 1 else chr(token) if token < 0xD800 else "\ufffd"


def _logprob(token: int, rivals: int, offset: int) -> TokenLogprob:
    def entry(token_id: int, top: tuple[TokenLogprob, ...] = (), offset: int = 0) -> TokenLogprob:
        text = f" {token_id}"
        return TokenLogprob(token_id, text, text.encode(), -token_id / 8, top, offset)

    return entry(token, tuple(entry(token + k) for k in range(rivals)), offset)


def _plain(given: EmbedInput) -> str | Sequence[int]:
    assert not isinstance(given, Image | ChatInput), "it reads texts alone"
    return given


def _size(given: EmbedInput) -> int:
    """Characters or tokens of an input, and bytes of its images."""
    if not isinstance(given, Image | ChatInput):
        return len(given)
    messages = given.messages if isinstance(given, ChatInput) else ()
    texts = sum(each.characters for each in messages)
    return texts + sum(len(image.data) for each in messages for image in each.images)


def _letter(place: int, letter: str | int) -> TokenScores:
    """A token of one letter; each fourth begins another name."""
    is_name = isinstance(letter, str) and letter.isupper()
    begins = is_name and place % 4 == 0
    scores = [0.1, 0.8 if begins else 0.2, 0.1 if begins else 0.7] if is_name else [0.9, 0.1, 0.0]
    return TokenScores(scores, place, place + 1, continues=place > 0)
