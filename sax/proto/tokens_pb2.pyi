from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tokens(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("text", "image", "sound", "video")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    SOUND_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    text: str
    image: Image
    sound: Sound
    video: Video
    def __init__(self, text: _Optional[str] = ..., image: _Optional[_Union[Image, _Mapping]] = ..., sound: _Optional[_Union[Sound, _Mapping]] = ..., video: _Optional[_Union[Video, _Mapping]] = ...) -> None: ...

class Image(_message.Message):
    __slots__ = ("data", "name")
    DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    name: str
    def __init__(self, data: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class Sound(_message.Message):
    __slots__ = ("data", "name")
    DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    name: str
    def __init__(self, data: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class Video(_message.Message):
    __slots__ = ("data", "name", "heard")
    DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    name: str
    heard: bool
    def __init__(self, data: _Optional[bytes] = ..., name: _Optional[str] = ..., heard: bool = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content", "name", "tool_call_id", "tool_calls", "reasoning", "parts")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    tool_call_id: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    reasoning: str
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ..., tool_call_id: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., reasoning: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters", "strict")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    strict: bool
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ..., strict: bool = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages", "tools", "tool_choice", "tool_name", "one_tool_call", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "divided", "allowed_tools")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    ONE_TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DIVIDED_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOOLS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: str
    tool_name: str
    one_tool_call: bool
    chat_template_kwargs: str
    add_generation_prompt: bool
    continue_final_message: bool
    divided: bool
    allowed_tools: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[str] = ..., tool_name: _Optional[str] = ..., one_tool_call: bool = ..., chat_template_kwargs: _Optional[str] = ..., add_generation_prompt: bool = ..., continue_final_message: bool = ..., divided: bool = ..., allowed_tools: _Optional[_Iterable[str]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "stop_sequence", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "max_thinking_tokens", "beam_size", "length_penalty", "early_stopping", "tokens_per_beam", "json_schema", "json_object", "regex", "choice", "grammar", "structural_tag")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_THINKING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_BEAM_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    seed: int
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logprobs: int
    stop_sequence: _containers.RepeatedScalarFieldContainer[int]
    min_p: float
    typical_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    min_tokens: int
    max_thinking_tokens: int
    beam_size: int
    length_penalty: float
    early_stopping: bool
    tokens_per_beam: int
    json_schema: str
    json_object: bool
    regex: str
    choice: _containers.RepeatedScalarFieldContainer[str]
    grammar: str
    structural_tag: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: bool = ..., logprobs: _Optional[int] = ..., stop_sequence: _Optional[_Iterable[int]] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[str]] = ..., min_tokens: _Optional[int] = ..., max_thinking_tokens: _Optional[int] = ..., beam_size: _Optional[int] = ..., length_penalty: _Optional[float] = ..., early_stopping: bool = ..., tokens_per_beam: _Optional[int] = ..., json_schema: _Optional[str] = ..., json_object: bool = ..., regex: _Optional[str] = ..., choice: _Optional[_Iterable[str]] = ..., grammar: _Optional[str] = ..., structural_tag: _Optional[str] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("echo", "prompt_logprobs", "return_token_ids", "truncate_prompt_tokens", "add_special_tokens", "skip_special_tokens", "include_stop_str_in_output", "suffix", "return_routed_experts")
    ECHO_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_FIELD_NUMBER: _ClassVar[int]
    RETURN_ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    echo: bool
    prompt_logprobs: int
    return_token_ids: bool
    truncate_prompt_tokens: int
    add_special_tokens: bool
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    suffix: str
    return_routed_experts: bool
    def __init__(self, echo: bool = ..., prompt_logprobs: _Optional[int] = ..., return_token_ids: bool = ..., truncate_prompt_tokens: _Optional[int] = ..., add_special_tokens: bool = ..., skip_special_tokens: bool = ..., include_stop_str_in_output: bool = ..., suffix: _Optional[str] = ..., return_routed_experts: bool = ...) -> None: ...

class AnswerSoFar(_message.Message):
    __slots__ = ("token_ids", "score", "prompt_logprobs", "version", "traceparent")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    score: float
    prompt_logprobs: int
    version: str
    traceparent: str
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., score: _Optional[float] = ..., prompt_logprobs: _Optional[int] = ..., version: _Optional[str] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Generate(_message.Message):
    __slots__ = ("id", "model_key", "text", "tokens", "chat", "sampling", "request_id", "token", "account", "cache_salt", "priority", "timeout_ms", "reply", "answer", "traceparent")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    id: int
    model_key: str
    text: str
    tokens: Tokens
    chat: Chat
    sampling: Sampling
    request_id: str
    token: str
    account: str
    cache_salt: str
    priority: int
    timeout_ms: int
    reply: Reply
    answer: AnswerSoFar
    traceparent: str
    def __init__(self, id: _Optional[int] = ..., model_key: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., request_id: _Optional[str] = ..., token: _Optional[str] = ..., account: _Optional[str] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., answer: _Optional[_Union[AnswerSoFar, _Mapping]] = ..., traceparent: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class ToServer(_message.Message):
    __slots__ = ("generate", "cancel", "beats")
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    BEATS_FIELD_NUMBER: _ClassVar[int]
    generate: Generate
    cancel: Cancel
    beats: bool
    def __init__(self, generate: _Optional[_Union[Generate, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., beats: bool = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token_id", "token", "token_bytes", "logprob", "top", "text_offset", "rank")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    TEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    text_offset: int
    rank: int
    def __init__(self, token_id: _Optional[int] = ..., token: _Optional[str] = ..., token_bytes: _Optional[bytes] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., text_offset: _Optional[int] = ..., rank: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("error", "text", "retry_after_s", "param")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    error: str
    text: str
    retry_after_s: float
    param: str
    def __init__(self, error: _Optional[str] = ..., text: _Optional[str] = ..., retry_after_s: _Optional[float] = ..., param: _Optional[str] = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("text", "token_ids", "score", "stop_token_id")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    score: float
    stop_token_id: int
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., score: _Optional[float] = ..., stop_token_id: _Optional[int] = ...) -> None: ...

class AnswerFormat(_message.Message):
    __slots__ = ("tools", "reasoning", "reasoning_open", "calls", "kinds", "reasoning_begin", "reasoning_end", "generic")
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    REASONING_OPEN_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    REASONING_BEGIN_FIELD_NUMBER: _ClassVar[int]
    REASONING_END_FIELD_NUMBER: _ClassVar[int]
    GENERIC_FIELD_NUMBER: _ClassVar[int]
    tools: str
    reasoning: str
    reasoning_open: bool
    calls: str
    kinds: str
    reasoning_begin: str
    reasoning_end: str
    generic: bool
    def __init__(self, tools: _Optional[str] = ..., reasoning: _Optional[str] = ..., reasoning_open: bool = ..., calls: _Optional[str] = ..., kinds: _Optional[str] = ..., reasoning_begin: _Optional[str] = ..., reasoning_end: _Optional[str] = ..., generic: bool = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("id", "text", "token_ids", "logprobs", "finish_reason", "prompt_tokens", "completion_tokens", "score", "cached_tokens", "failure", "prompt_logprobs", "prompt_token_ids", "stop_text", "stop_token_id", "seed", "version", "queue_s", "traceparent", "hypotheses", "answer_format", "reasoning_tokens", "schema_violation", "weights", "routed_experts")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STOP_TEXT_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FORMAT_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VIOLATION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ROUTED_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    score: float
    cached_tokens: int
    failure: Failure
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    stop_text: str
    stop_token_id: int
    seed: int
    version: str
    queue_s: float
    traceparent: str
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    answer_format: AnswerFormat
    reasoning_tokens: int
    schema_violation: str
    weights: _containers.RepeatedCompositeFieldContainer[WeightRun]
    routed_experts: RoutedExperts
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., finish_reason: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., score: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., stop_text: _Optional[str] = ..., stop_token_id: _Optional[int] = ..., seed: _Optional[int] = ..., version: _Optional[str] = ..., queue_s: _Optional[float] = ..., traceparent: _Optional[str] = ..., hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., answer_format: _Optional[_Union[AnswerFormat, _Mapping]] = ..., reasoning_tokens: _Optional[int] = ..., schema_violation: _Optional[str] = ..., weights: _Optional[_Iterable[_Union[WeightRun, _Mapping]]] = ..., routed_experts: _Optional[_Union[RoutedExperts, _Mapping]] = ...) -> None: ...

class RoutedExperts(_message.Message):
    __slots__ = ("data", "tokens", "layers", "experts", "width")
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    tokens: int
    layers: int
    experts: int
    width: int
    def __init__(self, data: _Optional[bytes] = ..., tokens: _Optional[int] = ..., layers: _Optional[int] = ..., experts: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class WeightRun(_message.Message):
    __slots__ = ("version", "tokens")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    version: str
    tokens: int
    def __init__(self, version: _Optional[str] = ..., tokens: _Optional[int] = ...) -> None: ...

class FromServer(_message.Message):
    __slots__ = ("chunks", "beats")
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    BEATS_FIELD_NUMBER: _ClassVar[int]
    chunks: _containers.RepeatedCompositeFieldContainer[Chunk]
    beats: bool
    def __init__(self, chunks: _Optional[_Iterable[_Union[Chunk, _Mapping]]] = ..., beats: bool = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model_key", "text", "chat", "add_special_tokens", "token_texts")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    text: str
    chat: Chat
    add_special_tokens: bool
    token_texts: bool
    def __init__(self, model_key: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., add_special_tokens: bool = ..., token_texts: bool = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("ids", "max_context", "token_texts")
    IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TEXTS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    max_context: int
    token_texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., max_context: _Optional[int] = ..., token_texts: _Optional[_Iterable[str]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model_key", "ids")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model_key: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class EmbedInput(_message.Message):
    __slots__ = ("text", "tokens", "chat")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: Tokens
    chat: ChatInput
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., chat: _Optional[_Union[ChatInput, _Mapping]] = ...) -> None: ...

class ChatInput(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model_key", "inputs", "dimensions", "prompt_name", "takes_tokens")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    TAKES_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    inputs: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    dimensions: int
    prompt_name: str
    takes_tokens: bool
    def __init__(self, model_key: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ..., dimensions: _Optional[int] = ..., prompt_name: _Optional[str] = ..., takes_tokens: bool = ...) -> None: ...

class Vector(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenPlace(_message.Message):
    __slots__ = ("start", "end", "continues", "special")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    continues: bool
    special: bool
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., continues: bool = ..., special: bool = ...) -> None: ...

class TokenVectors(_message.Message):
    __slots__ = ("width", "values", "places")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    width: int
    values: _containers.RepeatedScalarFieldContainer[float]
    places: _containers.RepeatedCompositeFieldContainer[TokenPlace]
    def __init__(self, width: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ..., places: _Optional[_Iterable[_Union[TokenPlace, _Mapping]]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("vectors", "prompt_tokens", "tokens")
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    vectors: _containers.RepeatedCompositeFieldContainer[Vector]
    prompt_tokens: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenVectors]
    def __init__(self, vectors: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenVectors, _Mapping]]] = ...) -> None: ...

class ScorePairsRequest(_message.Message):
    __slots__ = ("model_key", "first", "second", "first_inputs", "second_inputs")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    FIRST_INPUTS_FIELD_NUMBER: _ClassVar[int]
    SECOND_INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    first: _containers.RepeatedScalarFieldContainer[str]
    second: _containers.RepeatedScalarFieldContainer[str]
    first_inputs: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    second_inputs: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    def __init__(self, model_key: _Optional[str] = ..., first: _Optional[_Iterable[str]] = ..., second: _Optional[_Iterable[str]] = ..., first_inputs: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ..., second_inputs: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ...) -> None: ...

class ScorePairsResponse(_message.Message):
    __slots__ = ("scores", "prompt_tokens")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedScalarFieldContainer[float]
    prompt_tokens: int
    def __init__(self, scores: _Optional[_Iterable[float]] = ..., prompt_tokens: _Optional[int] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("model_key", "inputs", "takes_tokens", "candidates")
    MODEL_KEY_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TAKES_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    model_key: str
    inputs: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    takes_tokens: bool
    candidates: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    def __init__(self, model_key: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ..., takes_tokens: bool = ..., candidates: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("labels", "scores", "prompt_tokens", "tokens")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    scores: _containers.RepeatedCompositeFieldContainer[Vector]
    prompt_tokens: int
    tokens: _containers.RepeatedCompositeFieldContainer[TokenVectors]
    def __init__(self, labels: _Optional[_Iterable[str]] = ..., scores: _Optional[_Iterable[_Union[Vector, _Mapping]]] = ..., prompt_tokens: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[TokenVectors, _Mapping]]] = ...) -> None: ...

class PhasesRequest(_message.Message):
    __slots__ = ("request_ids",)
    REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    request_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class RequestPhase(_message.Message):
    __slots__ = ("request_id", "phase")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    phase: str
    def __init__(self, request_id: _Optional[str] = ..., phase: _Optional[str] = ...) -> None: ...

class PhasesResponse(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestPhase]
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestPhase, _Mapping]]] = ...) -> None: ...
