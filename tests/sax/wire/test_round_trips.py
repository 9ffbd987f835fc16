"""Decoding what was encoded gives the value back."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sax.activity import Activity
from sax.call_form import HERMES, LFM2, CallForm
from sax.errors import TABLE, InvalidRequest
from sax.need import Need
from sax.passes import ChatInput, Classified, Embedded, Gradients, PairScores, TokenScores
from sax.proto import admin_pb2, common_pb2, modelet_pb2, tokens_pb2
from sax.routed_experts import RoutedExpertIds
from sax.types import (
    AnswerFormat,
    AnswerSoFar,
    Autoscaling,
    Canary,
    CanaryShare,
    CellStats,
    ChatOptions,
    GenerateRequest,
    HypothesisText,
    Image,
    JoinedServer,
    Message,
    ModelSpec,
    Progress,
    PublishedModel,
    ReplicaStatus,
    ReplyOptions,
    SamplingParams,
    ServableInfo,
    ServableStatus,
    ServerInfo,
    ServerStatus,
    ServerTypeStat,
    Sound,
    TokenChunk,
    TokenLogprob,
    Tool,
    ToolCall,
    Video,
)
from sax.wire.embed import (
    decode_classified,
    decode_classify,
    decode_embed,
    decode_embedded,
    decode_gradients,
    decode_pair_scores,
    decode_pairs,
    encode_classified,
    encode_classify,
    encode_embed,
    encode_embedded,
    encode_gradients,
    encode_pair_scores,
    encode_pairs,
)
from sax.wire.models import (
    decode_load,
    decode_models,
    decode_published,
    decode_share,
    decode_spec,
    encode_load,
    encode_published,
    encode_share,
    encode_spec,
)
from sax.wire.prompts import decode_detokenize, decode_tokenize, encode_detokenize, encode_tokenize
from sax.wire.servers import (
    decode_join,
    decode_joined,
    decode_stats,
    decode_status,
    encode_join,
    encode_joined,
    encode_stats,
    encode_status,
)
from sax.wire.tokens import (
    decode_chunk,
    decode_failure,
    decode_generate,
    encode_chunk,
    encode_failure,
    encode_generate,
)
from tests.each_case import each_case

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
I32 = st.integers(0, 2**31 - 1)
I64 = st.integers(0, 2**62)
F64 = st.floats(allow_nan=False)
F32 = st.floats(width=32, allow_nan=False)
IMAGES = st.builds(Image, st.binary(max_size=12), TEXT)
SOUNDS = st.builds(Sound, st.binary(max_size=12), TEXT)
VIDEOS = st.builds(Video, st.binary(max_size=12), TEXT, heard=st.booleans())
CONTENT = TEXT | st.lists(TEXT | IMAGES | SOUNDS | VIDEOS, min_size=1, max_size=3).map(tuple)
VERSION = st.binary(min_size=16, max_size=16).map(bytes.hex)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
MAPS = st.dictionaries(TEXT, TEXT, max_size=3)
STATUS = st.sampled_from(ServableStatus)
PROGRESS = st.none() | st.builds(Progress, TEXT, I64, I64, TEXT)

SPECS = st.builds(
    ModelSpec,
    model_id=TEXT,
    model_path=TEXT,
    checkpoint=TEXT,
    replicas=I32,
    overrides=MAPS,
    acls=MAPS,
    admin_acl=TEXT,
    version=VERSION | st.just(""),
    autoscaling=st.none()
    | st.builds(Autoscaling, min_replicas=I32, max_replicas=I32, target_queue=st.floats(0, 1e6)),
    canary=st.none()
    | st.builds(
        Canary, version=VERSION, checkpoint=TEXT, overrides=MAPS, percent=st.floats(0, 100)
    ),
)
REPLICAS = st.builds(ReplicaStatus, TEXT, STATUS, TEXT, PROGRESS, TEXT, st.booleans())
SHARES = st.none() | st.builds(
    CanaryShare, VERSION, st.floats(0, 100), st.frozensets(TEXT, max_size=3)
)
SECONDS = st.floats(0, 1e12)
ACTIVITIES = st.builds(
    Activity,
    slots=I64,
    slots_used=I64,
    pages=I64,
    pages_used=I64,
    prompt_tokens=I64,
    cached_tokens=I64,
    generated_tokens=I64,
    answers_begun=I64,
    first_token_s=SECONDS,
    answers_timed=I64,
    token_interval_s=SECONDS,
)
SERVABLES = st.builds(
    ServableInfo,
    model_id=TEXT,
    status=STATUS,
    version=VERSION,
    reason=TEXT,
    progress=PROGRESS,
    memory=I64,
    methods=st.lists(TEXT, max_size=3).map(tuple),
    queued=I64,
    running=I64,
    arrived=I64,
    note=TEXT,
    kernels=TEXT,
    activity=ACTIVITIES,
)
CHIPS = st.sampled_from(["cpu", "tpuv5e", "tpuv6e", "h100", "l4", "unknown"])
TOPOLOGIES = st.sampled_from(["1", "4x8", "2x2x1", "8x16x16", "unknown"])
INFOS = st.builds(
    ServerInfo,
    address=TEXT,
    data_address=TEXT,
    debug_address=TEXT,
    chip_type=CHIPS,
    chip_topology=TOPOLOGIES,
    model_paths=TEXTS,
    tags=TEXTS,
    incarnation=TEXT,
    memory_total=I64,
    devices=I32,
)
LEAVES = st.builds(TokenLogprob, I32, TEXT, st.binary(max_size=4), F32)
LOGPROBS = st.builds(
    TokenLogprob,
    I32,
    TEXT,
    st.binary(max_size=4),
    F32,
    st.lists(LEAVES, max_size=2).map(tuple),
    I32,
    I32,
)
REPLIES = st.builds(
    ReplyOptions,
    echo=st.booleans(),
    prompt_logprobs=st.none() | I32,
    return_token_ids=st.booleans(),
    return_routed_experts=st.booleans(),
    truncate_prompt_tokens=st.none() | st.integers(-1, 100),
    add_special_tokens=st.none() | st.booleans(),
    skip_special_tokens=st.booleans(),
    include_stop_str_in_output=st.booleans(),
    suffix=st.none() | TEXT,
)
SAMPLING = st.builds(
    SamplingParams,
    temperature=F32,
    top_k=I32,
    top_p=F32,
    seed=st.none() | st.integers(0, 2**64 - 1),
    max_tokens=st.none() | I32,
    stop=TEXTS,
    stop_token_ids=st.lists(I32, max_size=3).map(tuple),
    stop_sequence=st.lists(I32, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | I32,
    max_thinking_tokens=st.none() | I32,
    beam_size=I32,
    length_penalty=st.floats(allow_nan=False),
    early_stopping=st.booleans(),
    tokens_per_beam=I32,
)
CALLS = st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT), max_size=2).map(tuple)
CHATS = st.lists(
    st.builds(Message, TEXT, CONTENT, TEXT, TEXT, CALLS, TEXT), min_size=1, max_size=3
).map(tuple)
OPTIONS = st.builds(
    ChatOptions,
    tools=st.lists(st.builds(Tool, TEXT, TEXT, TEXT, st.booleans()), max_size=2).map(tuple),
    tool_choice=st.sampled_from(["auto", "none", "required", "function"]),
    tool_name=TEXT,
    allowed_tools=st.lists(TEXT, max_size=2).map(tuple),
    parallel_tool_calls=st.booleans(),
    chat_template_kwargs=TEXT,
    add_generation_prompt=st.booleans(),
    continue_final_message=st.booleans(),
    divided=st.booleans(),
)
FORMATS = st.none() | st.builds(
    AnswerFormat,
    TEXT,
    TEXT,
    st.booleans(),
    st.none() | st.sampled_from([HERMES, LFM2]) | st.builds(CallForm, TEXT, TEXT, pair=TEXT),
    st.dictionaries(
        TEXT, st.dictionaries(TEXT, st.lists(TEXT, max_size=2), max_size=2), max_size=2
    ),
    st.none() | st.tuples(TEXT, TEXT.filter(bool)),
    st.booleans(),
)
REQUESTS = st.builds(
    GenerateRequest,
    model_id=TEXT,
    prompt=TEXT | st.lists(I32, max_size=4).map(tuple) | CHATS,
    sampling=SAMPLING,
    reply=REPLIES,
    request_id=TEXT,
    account=TEXT,
    priority=I32,
    cache_salt=TEXT,
    timeout_s=st.none() | st.integers(1, 2**31 - 1).map(lambda ms: ms / 1000),
    answer=st.none()
    | st.builds(
        AnswerSoFar,
        token_ids=st.lists(I32, max_size=3).map(tuple),
        score=F64,
        prompt_logprobs=I32,
        version=VERSION | st.just(""),
    ),
)
CHUNKS = st.builds(
    TokenChunk,
    TEXT,
    st.lists(I32, max_size=3).map(tuple),
    st.lists(LOGPROBS, max_size=2).map(tuple),
    st.sampled_from([None, "stop", "length"]),
    I32,
    I32,
    st.floats(allow_nan=False),
    I32,
    st.lists(LOGPROBS, max_size=2).map(tuple),
    st.lists(I32, max_size=3).map(tuple),
    st.none() | TEXT | I32,
    st.none() | st.integers(0, 2**64 - 1),
    st.lists(
        st.builds(
            HypothesisText,
            TEXT,
            st.lists(I32, max_size=3).map(tuple),
            st.floats(allow_nan=False),
            st.none() | I32,
        ),
        max_size=2,
    ).map(tuple),
    version=VERSION | st.just(""),
    answer_format=FORMATS,
    reasoning_tokens=I32,
    schema_violation=TEXT,
    routed_experts=st.none()
    | st.builds(RoutedExpertIds, st.binary(max_size=8), I32, I32, I32, st.sampled_from([1, 2])),
)


@given(SPECS)
def test_a_spec_survives_the_wire(spec: ModelSpec) -> None:
    wire = encode_spec(spec).SerializeToString()
    assert decode_spec(admin_pb2.Model.FromString(wire)) == spec


@given(SPECS)
def test_a_load_request_carries_all_of_a_spec_that_a_server_needs(spec: ModelSpec) -> None:
    wire = encode_load(spec).SerializeToString()
    loaded = decode_load(modelet_pb2.LoadRequest.FromString(wire))
    assert loaded == replace(spec, replicas=0, admin_acl="", autoscaling=None, canary=None)


@given(SHARES)
def test_a_canarys_share_survives_the_wire(share: CanaryShare | None) -> None:
    wire = admin_pb2.WatchLocResponse(canary=encode_share(share)).SerializeToString()
    assert decode_share(admin_pb2.WatchLocResponse.FromString(wire)) == share


@given(SPECS, st.lists(REPLICAS, max_size=3).map(tuple), TEXTS)
def test_a_published_model_survives_the_wire(
    spec: ModelSpec, replicas: tuple[ReplicaStatus, ...], methods: tuple[str, ...]
) -> None:
    model = PublishedModel(spec, replicas, methods, published_at_s=1.5)
    msg = encode_published(model)
    assert decode_published(msg) == model
    assert list(msg.modelet_addresses) == [r.address for r in replicas if r.address]
    assert msg.ready_replicas == model.ready_replicas


def test_a_listed_model_has_room_for_what_fits_into_every_ready_replica() -> None:
    sizes = {"a:1": (4096, "LOADED"), "a:2": (2048, "LOADED"), "a:3": (512, "LOADING")}
    listing = admin_pb2.ListResponse(
        published_models=[
            admin_pb2.PublishedModel(model=admin_pb2.Model(model_id=name))
            for name in ("/m/a/b", "/m/a/c")
        ],
        servers=[
            admin_pb2.JoinedModelServer(
                address=address,
                servables=[
                    admin_pb2.Servable(
                        model_id="/m/a/b",
                        status=common_pb2.ModelStatus.Value(status),
                        memory_parts=common_pb2.MemoryParts(context=context),
                    )
                ],
            )
            for address, (context, status) in sizes.items()
        ],
    )
    assert [model.max_context for model in decode_models(listing)] == [2048, 0]


def test_a_saxml_admins_listing_gives_the_addresses() -> None:
    msg = admin_pb2.PublishedModel(
        model=admin_pb2.Model(model_id="/sax/test/m"), modelet_addresses=["a:1", "b:2"]
    )
    model = decode_published(msg)
    assert [replica.address for replica in model.replicas] == ["a:1", "b:2"]
    assert model.ready_replicas == 0


@given(INFOS)
def test_a_join_survives_the_wire(info: ServerInfo) -> None:
    assert decode_join(encode_join(info)) == info
    assert decode_join(encode_join(info, leaving=True)) == info


@given(st.lists(SERVABLES, max_size=3).map(tuple), TEXT, I64, I64, st.booleans())
def test_a_servers_status_survives_the_wire(
    servables: tuple[ServableInfo, ...], incarnation: str, total: int, used: int, draining: bool
) -> None:
    status = ServerStatus(servables, incarnation, total, used, draining=draining)
    assert decode_status(encode_status(status)) == status


@given(INFOS, st.integers(0, 2**40), st.lists(SERVABLES, max_size=3).map(tuple), I64)
def test_a_joined_server_survives_the_wire_to_the_millisecond(
    info: ServerInfo, seen_ms: int, servables: tuple[ServableInfo, ...], used: int
) -> None:
    server = JoinedServer(info, seen_ms / 1000, servables, used)
    assert decode_joined(encode_joined(server)) == server


@given(st.none() | st.builds(Need, devices=I32, memory=I64, weights=I64))
def test_what_a_refused_model_needs_survives_the_wire(need: Need | None) -> None:
    refused = ServableInfo(model_id="/sax/test/m", status=ServableStatus.FAILED, need=need)
    status = ServerStatus((refused,))
    assert decode_status(encode_status(status)) == status


def test_a_need_below_nothing_is_none_at_all() -> None:
    msg = modelet_pb2.GetStatusResponse()
    msg.models.add().need.devices = -1
    assert decode_status(msg).servables[0].need == Need()


def test_a_saxml_admins_joined_server_gives_statuses_and_reasons() -> None:
    msg = admin_pb2.JoinedModelServer(address="a:1", failure_reasons={"/sax/test/m": "no room"})
    msg.loaded_models["/sax/test/m"] = common_pb2.FAILED
    (servable,) = decode_joined(msg).servables
    assert (servable.status, servable.reason) == (ServableStatus.FAILED, "no room")


@given(st.lists(st.builds(ServerTypeStat, CHIPS, TOPOLOGIES, I32), max_size=3).map(tuple))
def test_stats_survive_the_wire(types: tuple[ServerTypeStat, ...]) -> None:
    stats = CellStats(types, {"llama": 2})
    assert decode_stats(encode_stats(stats)) == stats


@given(st.integers(0, 2**64 - 1), REQUESTS)
def test_a_question_survives_the_wire(number: int, request: GenerateRequest) -> None:
    wire = encode_generate(number, request).SerializeToString()
    msg = tokens_pb2.Generate.FromString(wire)
    assert msg.id == number
    assert decode_generate(msg) == request


@given(st.integers(0, 2**64 - 1), CHUNKS)
def test_a_chunk_survives_the_wire(number: int, chunk: TokenChunk) -> None:
    msg = tokens_pb2.Chunk.FromString(encode_chunk(number, chunk).SerializeToString())
    assert msg.id == number
    assert not msg.HasField("failure")
    assert decode_chunk(msg) == chunk


@given(TEXT, TEXT | CHATS, st.sampled_from([None, False, True]), OPTIONS)
def test_a_text_to_tokenize_survives_the_wire(
    model_id: str, prompt: str | tuple[Message, ...], special: bool | None, chat: ChatOptions
) -> None:
    decoded = decode_tokenize(encode_tokenize(model_id, prompt, special, chat))
    told = ChatOptions() if isinstance(prompt, str) else chat
    assert decoded == (model_id, prompt, special, told)


@given(CHATS, OPTIONS)
def test_a_chat_with_tools_survives_the_wire(
    messages: tuple[Message, ...], chat: ChatOptions
) -> None:
    request = GenerateRequest(model_id="m", prompt=messages, chat=chat)
    assert decode_generate(encode_generate(1, request)) == request


@given(TEXT, st.lists(st.integers(0, 2**31 - 1)))
def test_tokens_to_turn_into_text_survive_the_wire(model_id: str, ids: list[int]) -> None:
    sent = encode_detokenize(model_id, ids)
    assert decode_detokenize(sent) == (model_id, tuple(ids))


@each_case("cls", TABLE)
def test_a_failure_survives_the_wire(cls: type) -> None:
    msg = encode_failure(7, cls("why", param="seed", retry_after_s=1.5))
    error = decode_failure(msg)
    assert msg.id == 7
    assert type(error) is cls
    assert (error.text, error.param, error.retry_after_s) == ("why", "seed", 1.5)


@each_case(
    "field, value",
    [
        ("seed", -1),
        ("seed", 2**64),
        ("top_k", 2**31),
        ("max_tokens", 1.5),
        ("temperature", "hot"),
        ("stop", (1,)),
        ("stop_token_ids", (2**31,)),
        ("stop_sequence", (2**31,)),
    ],
)
def test_a_sampling_field_no_message_can_hold_is_refused_by_name(field: str, value: object) -> None:
    sampling = SamplingParams(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=field) as caught:
        encode_generate(1, GenerateRequest(model_id="m", prompt="", sampling=sampling))
    assert caught.value.param == field


@each_case("timeout_s, timeout_ms", [(1e-9, 1), (0.0011, 2), (1e9, 0), (math.inf, 0), (None, 0)])
def test_a_time_limit_is_sent_in_whole_milliseconds_or_not_at_all(
    timeout_s: float | None, timeout_ms: int
) -> None:
    asked = GenerateRequest(model_id="m", prompt="", timeout_s=timeout_s)
    assert encode_generate(1, asked).timeout_ms == timeout_ms


@pytest.mark.parametrize("prompt", ["\ud800", (2**31,), (Message("user", "\udfff"),)])
def test_a_prompt_no_message_can_hold_is_refused(prompt: object) -> None:
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        encode_generate(1, GenerateRequest(model_id="m", prompt=prompt))  # type: ignore[arg-type]


INPUTS = st.lists(TEXT | st.lists(I32, max_size=4).map(tuple), max_size=4)


@given(TEXT, INPUTS, I32, TEXT)
def test_inputs_to_embed(
    model_id: str, inputs: list[str | tuple[int, ...]], dimensions: int, prompt: str
) -> None:
    message = encode_embed(model_id, inputs, dimensions, prompt)
    assert decode_embed(message) == (model_id, inputs, dimensions, prompt)


@given(TEXT, INPUTS)
def test_inputs_to_classify(model_id: str, inputs: list[str | tuple[int, ...]]) -> None:
    assert decode_classify(encode_classify(model_id, inputs)) == (model_id, inputs, [])


def test_inputs_of_texts_and_images() -> None:
    image = Image(b"png", "here")
    chat = ChatInput((Message("system", "s"), Message("user", ("a", image, "b"))))
    sent, read = ["a", image, chat], ["a", ChatInput.of(image), chat]
    assert decode_embed(encode_embed("m", [*sent, (1, 2)]))[1] == [*read, (1, 2)]
    assert decode_classify(encode_classify("m", sent, candidates=sent)) == ("m", read, read)
    assert decode_pairs(encode_pairs("m", ["a"], sent)) == ("m", ["a"], read)
    assert decode_pairs(encode_pairs("m", ["a"], ["b"])) == ("m", ["a"], ["b"])
    assert encode_pairs("m", ["a"], ["b"]).first == ["a"]


def test_vectors_and_scores_of_tokens() -> None:
    embedded = Embedded([], 3, [[[1.0, 0.5], [2.0, 0.25]], [[3.0, -1.0]], []])
    assert decode_embedded(encode_embedded(embedded)) == embedded
    token = TokenScores([0.5, 0.25], 2, 5, continues=True)
    classified = Classified(("a", "b"), [], 2, [[token, TokenScores([1.0, 0.0], special=True)], []])
    assert decode_classified(encode_classified(classified)) == classified


@given(st.lists(F64), st.dictionaries(TEXT, st.lists(F64, max_size=4), max_size=3))
def test_gradients(score: list[float], gradients: dict[str, list[float]]) -> None:
    found = Gradients(score, gradients)
    assert decode_gradients(encode_gradients(found)) == found


@given(st.lists(F64), I32)
def test_scores_of_pairs(scores: list[float], tokens: int) -> None:
    found = PairScores(scores, tokens)
    assert decode_pair_scores(encode_pair_scores(found)) == found


@given(st.lists(TEXT, max_size=3), st.lists(st.lists(F32, max_size=3), max_size=3), I32)
def test_classes(labels: list[str], scores: list[list[float]], tokens: int) -> None:
    found = Classified(tuple(labels), scores, tokens)
    assert decode_classified(encode_classified(found)) == found


@given(st.lists(st.lists(F32, max_size=4), max_size=3), I64)
def test_vectors(vectors: list[list[float]], tokens: int) -> None:
    embedded = Embedded(vectors, tokens)
    assert decode_embedded(encode_embedded(embedded)) == embedded
