"""Table of the fields of every request: on which routes, of which kind, and how large at most.

The HTTP schemas, the gRPC services and the admin server take their bounds from here, and the stress
rows attack every field of every route. Bounds are checked before any other work is done, so that no
field of one request can delay the requests of others.
"""

from __future__ import annotations

from sax.fields.field import Kind, RequestField, RequestRoute
from sax.fields.sampling import (
    INT32,
    MOST_LOGPROBS,
    MOST_PRIORITY,
    SAMPLING,
    SCHEMA_BYTES,
    SamplingRow,
)

MODEL_BYTES = 200  # of a model's name: part of file names, labels and every log line
MODEL_PATH_BYTES = 400
CHECKPOINT_BYTES = 4096  # PATH_MAX; a URL is shorter
OVERRIDES = 256
OVERRIDE_BYTES = 64 << 10  # a grammar or a chat template, not a vocabulary
ACLS = 256
TAGS = 64
TAG_BYTES = 200
SPEC_BYTES = 256 << 10  # of all texts of a spec: with 2,000 models a snapshot is read in seconds
MOST_REPLICAS = 1000  # each is listed with its reason

TOOLS = 512  # of one chat, and calls of one message; OpenAI's limit is 128, which agents exceed
TOOL_NAME_BYTES = 128  # Anthropic's own limit; OpenAI's is 64
TOOL_TEXT_BYTES = 32 << 10  # of a description
TOOLS_BYTES = 1 << 20  # of all texts of a chat's tools
TEMPLATE_BYTES = 16 << 10  # of all variables of a chat template
TEXT_BYTES = 4 << 20  # a million tokens of English
TOKEN_IDS = 1 << 18  # of one request; a longer prompt is read faster as text
IMAGES = 16  # and sounds and videos, of one request
IMAGE_BYTES = 20 << 20  # of one image, sound or video, and of all those of a request
_BASE64_IMAGE = 4 * (IMAGE_BYTES // 3 + 1) + 100  # with the head of a data URL
LABEL_BYTES = 512
SOUND_BYTES = 25 << 20  # OpenAI's own limit
SPEECH_CHARACTERS = 4096  # of a text to speak: OpenAI's own limit
SPEECH_BYTES = 4 * SPEECH_CHARACTERS
SPOKEN_BYTES = 8 << 10  # of text before a sound: only its last 223 tokens are read
MOST_TIMEOUT_S = 86400
MOST_FIELDS = 64  # of one JSON object, known and unknown ones
FIELD_NAME_BYTES = 128
FIELD_NAME_LENGTH = 128  # characters of a name that is not known

_INT32, _INT64 = INT32, 2**63 - 1
_OPENAI = (RequestRoute.CHAT, RequestRoute.COMPLETIONS)
_ANTHROPIC = (RequestRoute.MESSAGES, RequestRoute.COUNT_TOKENS)
_GENERATED = (*_OPENAI, RequestRoute.RESPONSES)
_OLLAMA = (RequestRoute.OLLAMA_CHAT, RequestRoute.OLLAMA_GENERATE)
_OLLAMA_VECTORS = (RequestRoute.OLLAMA_EMBED, RequestRoute.OLLAMA_EMBEDDINGS)
_OLLAMA_CHANGES = (
    *(RequestRoute.OLLAMA_PULL, RequestRoute.OLLAMA_CREATE),
    *(RequestRoute.OLLAMA_COPY, RequestRoute.OLLAMA_DELETE),
)
_SCORES = (RequestRoute.RERANK, RequestRoute.SCORE, RequestRoute.CLASSIFY)
_V1 = (*_GENERATED, RequestRoute.EMBEDDINGS, *_SCORES)
_OURS = (RequestRoute.STREAM,)
_TOKENS = (RequestRoute.TEXT_TO_TOKENS, RequestRoute.TOKENS_TO_TEXT)
_INFILL = RequestRoute.INFILL
_TEMPLATED = (RequestRoute.STREAM, RequestRoute.TOKENIZE)
_CHATS = (RequestRoute.CHAT, *_TEMPLATED, RequestRoute.TEXT_TO_TOKENS)
_CALLERS = (RequestRoute.CHAT, RequestRoute.RESPONSES)
_RENDERED = (RequestRoute.CHAT, RequestRoute.TEXT_TO_TOKENS)
_SAXML = (
    RequestRoute.LM_GENERATE,
    RequestRoute.LM_SCORE,
    RequestRoute.LM_EMBED,
    RequestRoute.LM_GRADIENT,
)
_IMAGES = (RequestRoute.VM_CLASSIFY, RequestRoute.VM_EMBED)
_MULTIMODAL = (RequestRoute.MM_GENERATE, RequestRoute.MM_SCORE)
_PICTURES = {"count": IMAGES, "bytes": _BASE64_IMAGE}
_SOUNDS = (RequestRoute.TRANSCRIPTIONS, RequestRoute.TRANSLATIONS)
_SPEECHES = (RequestRoute.SPEECH, RequestRoute.SPEAK)
_PUBLISHED = (RequestRoute.PUBLISH, RequestRoute.UPDATE)
_SPECS = (*_PUBLISHED, RequestRoute.ADMIN_PUBLISH)
_LOADED = (*_SPECS, RequestRoute.CANARY)
_NAMED = (
    *_LOADED,
    RequestRoute.PROMOTE,
    RequestRoute.ABORT,
    RequestRoute.ROLLBACK,
    RequestRoute.WEIGHTS,
    RequestRoute.UNPUBLISH,
    RequestRoute.LISTCELL,
    RequestRoute.EVENTS,
)


def _text(name: str, most: int, *routes: RequestRoute) -> RequestField:
    return RequestField(name=name, kind=Kind.TEXT, routes=routes, bytes=most)


def _flag(name: str, *routes: RequestRoute) -> RequestField:
    return RequestField(name=name, kind=Kind.FLAG, routes=routes)


def _integer(name: str, least: int, most: int, *routes: RequestRoute) -> RequestField:
    return RequestField(name=name, kind=Kind.INTEGER, routes=routes, least=least, most=most)


def _number(name: str, *routes: RequestRoute, **bounds: float) -> RequestField:
    return RequestField(name=name, kind=Kind.NUMBER, routes=routes, **bounds)  # pyright: ignore[reportArgumentType]


def _many(name: str, kind: Kind, *routes: RequestRoute, **bounds: int) -> RequestField:
    return RequestField(name=name, kind=kind, routes=routes, **bounds)  # pyright: ignore[reportArgumentType]


_NAMES = (
    _text(
        "model",
        MODEL_BYTES,
        *(*_V1, *_ANTHROPIC, *_OLLAMA, *_OLLAMA_VECTORS, RequestRoute.OLLAMA_SHOW),
        *(
            *_TOKENS,
            _INFILL,
            *_SOUNDS,
            RequestRoute.SPEECH,
            RequestRoute.GENERATE,
            *_NAMED,
            *_OLLAMA_CHANGES,
        ),
    ),
    _text("name", MODEL_BYTES, RequestRoute.MODEL, RequestRoute.OLLAMA_SHOW, *_OLLAMA_CHANGES),
    _text("from", MODEL_BYTES, RequestRoute.OLLAMA_CREATE),
    _text("source", MODEL_BYTES, RequestRoute.OLLAMA_COPY),
    _text("destination", MODEL_BYTES, RequestRoute.OLLAMA_COPY),
    _flag("stream", RequestRoute.OLLAMA_PULL, RequestRoute.OLLAMA_CREATE),
    _text("sax_cell", MODEL_BYTES, RequestRoute.LISTALL),
    _text(
        "model_key",
        MODEL_BYTES,
        *_OURS,
        RequestRoute.TOKENIZE,
        RequestRoute.DETOKENIZE,
        RequestRoute.EMBED,
        RequestRoute.SCORE_PAIRS,
        RequestRoute.CLASSES,
        *_SAXML,
        RequestRoute.CUSTOM,
        *(*_IMAGES, *_MULTIMODAL, RequestRoute.AM_RECOGNIZE, RequestRoute.TRANSCRIBE),
        RequestRoute.SPEAK,
    ),
)
_QUESTIONS = (
    # 8 values: role, content, its parts, and what clients send back of an earlier reply
    _many("messages", Kind.MESSAGES, *_CHATS, count=4096, values=8),
    # Blocks with a type and a few fields each; what they hold is counted below
    _many("messages", Kind.MESSAGES, *_ANTHROPIC, count=4096, values=16),
    # 8: role, content, thinking, and the name and id of a result
    _many("messages", Kind.MESSAGES, RequestRoute.OLLAMA_CHAT, count=4096, values=8),
    _text("messages.role", 64, *_CHATS, *_ANTHROPIC, RequestRoute.OLLAMA_CHAT),
    _text("messages.content", TEXT_BYTES, RequestRoute.OLLAMA_CHAT),
    _text("messages.thinking", TEXT_BYTES, RequestRoute.OLLAMA_CHAT),
    _text("messages.tool_name", LABEL_BYTES, RequestRoute.OLLAMA_CHAT),
    _text("messages.tool_call_id", LABEL_BYTES, RequestRoute.OLLAMA_CHAT),
    _many("messages.tool_calls", Kind.OBJECTS, RequestRoute.OLLAMA_CHAT, count=TOOLS, values=32),
    _text("prompt", TEXT_BYTES, RequestRoute.OLLAMA_GENERATE, RequestRoute.OLLAMA_EMBEDDINGS),
    _text("system", TEXT_BYTES, RequestRoute.OLLAMA_GENERATE),
    _many("input", Kind.TEXTS, RequestRoute.OLLAMA_EMBED, count=2048, bytes=TEXT_BYTES),
    # A text, or a list of parts
    _many("messages.content", Kind.TEXTS, *_CHATS, *_ANTHROPIC, count=1024, bytes=TEXT_BYTES),
    _many("system", Kind.TEXTS, *_ANTHROPIC, count=1024, bytes=TEXT_BYTES, values=8),
    _many("messages.images", Kind.TEXTS, *_TEMPLATED, count=IMAGES, bytes=IMAGE_BYTES),
    _many("messages.images", Kind.TEXTS, RequestRoute.OLLAMA_CHAT, **_PICTURES),
    _many("images", Kind.TEXTS, RequestRoute.OLLAMA_GENERATE, **_PICTURES),
    _text("messages.content.image_url", _BASE64_IMAGE, *_RENDERED),
    _text("messages.content.input_audio", _BASE64_IMAGE, *_RENDERED),
    _text("messages.content.video_url", _BASE64_IMAGE, *_RENDERED),
    _text("messages.content.source", _BASE64_IMAGE, *_ANTHROPIC),
    _text("messages.name", LABEL_BYTES, *_CHATS),
    _text("messages.tool_call_id", LABEL_BYTES, *_CHATS),
    _text("messages.reasoning", TEXT_BYTES, *_CHATS),
    _text("messages.reasoning_content", TEXT_BYTES, RequestRoute.CHAT),
    _text("messages.refusal", TEXT_BYTES, *_RENDERED),
    _many("messages.tool_calls", Kind.OBJECTS, *_CHATS, count=TOOLS),
    _text("messages.tool_calls.id", LABEL_BYTES, *_CHATS),
    _text("messages.tool_calls.name", TOOL_NAME_BYTES, *_CHATS),
    _text("messages.tool_calls.arguments", TEXT_BYTES, *_CHATS),
    _many(
        "prompt",
        Kind.PROMPTS,
        *(RequestRoute.COMPLETIONS, *_OURS, RequestRoute.TOKENIZE),
        count=128,
        bytes=TEXT_BYTES,
        tokens=TOKEN_IDS,
    ),
    _text("prompt", TEXT_BYTES, RequestRoute.TEXT_TO_TOKENS),
    RequestField(
        name="tokens",
        kind=Kind.IDS,
        routes=(RequestRoute.TOKENS_TO_TEXT, RequestRoute.DETOKENIZE),
        least=0,
        most=INT32,
        count=1,  # list
        tokens=TOKEN_IDS,
    ),
    _many(
        "input",
        Kind.PROMPTS,
        *(RequestRoute.EMBEDDINGS, RequestRoute.EMBED, RequestRoute.CLASSIFY, RequestRoute.CLASSES),
        count=2048,  # OpenAI's own limit
        bytes=TEXT_BYTES,
        tokens=TOKEN_IDS,
        values=8,  # of an input of texts and images
    ),
    _many("candidates", Kind.TEXTS, RequestRoute.CLASSIFY, count=2048, bytes=TEXT_BYTES, values=8),
    _many("messages", Kind.MESSAGES, RequestRoute.EMBEDDINGS, count=64, values=64),
    _text("query", TEXT_BYTES, RequestRoute.GENERATE, RequestRoute.RERANK),
    # Texts, or objects of texts and images
    _many("documents", Kind.TEXTS, RequestRoute.RERANK, count=2048, bytes=TEXT_BYTES, values=8),
    _many("text_1", Kind.TEXTS, RequestRoute.SCORE, count=2048, bytes=TEXT_BYTES, values=8),
    _many("text_2", Kind.TEXTS, RequestRoute.SCORE, count=2048, bytes=TEXT_BYTES, values=8),
    _many("first", Kind.TEXTS, RequestRoute.SCORE_PAIRS, count=2048, bytes=TEXT_BYTES),
    _many("second", Kind.TEXTS, RequestRoute.SCORE_PAIRS, count=2048, bytes=TEXT_BYTES),
    _text("text", TEXT_BYTES, RequestRoute.LM_GENERATE, RequestRoute.LM_EMBED),
    _text("prefix", TEXT_BYTES, RequestRoute.LM_SCORE, RequestRoute.LM_GRADIENT),
    _text("suffix", TEXT_BYTES, RequestRoute.LM_GRADIENT),
    _many("suffix", Kind.TEXTS, RequestRoute.LM_SCORE, count=1024, bytes=TEXT_BYTES),
    _text("request", 32 << 20, RequestRoute.CUSTOM),  # pictures and sound, not only text
    _text("method_name", LABEL_BYTES, RequestRoute.CUSTOM),
    _text("image_bytes", IMAGE_BYTES, *_IMAGES),
    # Texts and images
    _many("items", Kind.TEXTS, RequestRoute.MM_GENERATE, count=1024, bytes=TEXT_BYTES),
    _many("prefix_items", Kind.TEXTS, RequestRoute.MM_SCORE, count=1024, bytes=TEXT_BYTES),
    _many("suffix_items", Kind.TEXTS, RequestRoute.MM_SCORE, count=1024, bytes=TEXT_BYTES),
    _text("audio_bytes", SOUND_BYTES, RequestRoute.AM_RECOGNIZE),
    _text("sound", SOUND_BYTES, RequestRoute.TRANSCRIBE),
    _text("file", SOUND_BYTES, *_SOUNDS),
    _text("filename", 255, *_SOUNDS),
    _text("language", 32, RequestRoute.TRANSCRIPTIONS, RequestRoute.TRANSCRIBE),
    _text("prompt", SPOKEN_BYTES, *_SOUNDS, RequestRoute.TRANSCRIBE),
    _number("temperature", *_SOUNDS, RequestRoute.TRANSCRIBE, least=0, most=1),
    _text("response_format", 16, *_SOUNDS, RequestRoute.SPEECH),
    _many("timestamp_granularities", Kind.TEXTS, RequestRoute.TRANSCRIPTIONS, count=2, bytes=16),
    _flag("stream", RequestRoute.TRANSCRIPTIONS),
    _text("input", SPEECH_BYTES, RequestRoute.SPEECH),
    _text("text", SPEECH_BYTES, RequestRoute.SPEAK),
    _text("voice", LABEL_BYTES, *_SPEECHES),
    _text("instructions", SPEECH_BYTES, RequestRoute.SPEECH),
    _number("speed", *_SPEECHES, least=0.25, most=4),
    _integer("seed", 0, (1 << 32) - 1, *_SPEECHES),
    _text("format", 16, RequestRoute.SPEAK),
    _text("stream_format", 16, RequestRoute.SPEECH),
)


def _sampling(name: str, row: SamplingRow) -> list[RequestField]:
    made = [RequestField(name=name, kind=row.kind, routes=_OURS, **row.bounds)]
    if row.http is not None:
        bounds = row.http_bounds
        made.append(RequestField(name=name, kind=row.kind, routes=_GENERATED, **bounds))
    return made


_RESPONSES = (
    # A text, or a list of items. 8 values: role, content, its parts, and what clients send back
    RequestField(
        name="input",
        kind=Kind.MESSAGES,
        routes=(RequestRoute.RESPONSES,),
        count=4096,
        bytes=TEXT_BYTES,
        values=8,
    ),
    # 512: parts of an item
    RequestField(
        name="items",
        kind=Kind.MESSAGES,
        routes=(RequestRoute.CONVERSATIONS,),
        count=20,  # OpenAI's own limit
        bytes=TEXT_BYTES,
        values=512,
    ),
    _many("conversation", Kind.MAP, RequestRoute.RESPONSES, count=1, bytes=LABEL_BYTES),
    _text("input.role", 64, RequestRoute.RESPONSES),
    # A text, or a list of parts
    _many("input.content", Kind.TEXTS, RequestRoute.RESPONSES, count=1024, bytes=TEXT_BYTES),
    _text("input.content.image_url", _BASE64_IMAGE, RequestRoute.RESPONSES),
    _text("input.id", LABEL_BYTES, RequestRoute.RESPONSES),
    _text("input.call_id", LABEL_BYTES, RequestRoute.RESPONSES),
    _text("input.reason", TEXT_BYTES, RequestRoute.RESPONSES),
    _text("input.name", TOOL_NAME_BYTES, RequestRoute.RESPONSES),
    _text("input.arguments", TEXT_BYTES, RequestRoute.RESPONSES),
    _text("input.encrypted_content", TEXT_BYTES, RequestRoute.RESPONSES),
    _text("instructions", TEXT_BYTES, RequestRoute.RESPONSES),
    _text("previous_response_id", LABEL_BYTES, RequestRoute.RESPONSES),
    # 1024: values of a format with its schema
    _many("text", Kind.MAP, RequestRoute.RESPONSES, count=8, bytes=SCHEMA_BYTES, values=1024),
    _many("reasoning", Kind.MAP, RequestRoute.RESPONSES, count=8, bytes=64),
    # Of Codex: what its turns are called
    _many("client_metadata", Kind.MAP, RequestRoute.RESPONSES, count=64, bytes=16 << 10, values=2),
    _many("include", Kind.TEXTS, RequestRoute.RESPONSES, count=16, bytes=128),
    _flag("store", RequestRoute.RESPONSES),
    _flag("background", RequestRoute.RESPONSES),
    _integer("max_tool_calls", 1, _INT32, RequestRoute.RESPONSES),
)


_SAMPLING = (
    *(each for name, row in SAMPLING.items() for each in _sampling(name, row)),
    # 256: values of an entry of a schema
    *(
        _many(name, Kind.MAP, *_OPENAI, count=32, bytes=SCHEMA_BYTES, values=256)
        for name in ("response_format", "structured_outputs", "guided_json")
    ),
    _text("guided_regex", SAMPLING["regex"].bytes or 0, *_OPENAI),
    _many("guided_choice", Kind.TEXTS, *_OPENAI, count=1024, bytes=1024),
    _text("guided_grammar", SCHEMA_BYTES, *_OPENAI),
    _integer("n", 1, 8, *_OPENAI),
    _flag("use_beam_search", *_OPENAI),
    _integer("best_of", 1, 20, RequestRoute.COMPLETIONS),  # OpenAI's own limit
    _integer("max_completion_tokens", 1, _INT32, RequestRoute.CHAT),
    _integer("thinking_token_budget", 0, _INT32, *_OPENAI),  # vLLM's name of max_thinking_tokens
    _integer("max_output_tokens", 1, _INT32, RequestRoute.RESPONSES),
    _integer("priority", -MOST_PRIORITY, MOST_PRIORITY, *_GENERATED, *_OURS),
    # Seconds, waiting included; the X-Request-Timeout header has the same bounds on every route
    _number("timeout", *_V1, *_TOKENS, _INFILL, RequestRoute.SPEECH, above=0, most=MOST_TIMEOUT_S),
    _integer("timeout_ms", 0, _INT32, *_OURS),  # 0: no limit
    # 128: entries, and numbers of one tensor
    _many(
        "extra_inputs",
        Kind.MAP,
        *(RequestRoute.GENERATE, *_SAXML, RequestRoute.CUSTOM),
        *(*_IMAGES, *_MULTIMODAL, RequestRoute.AM_RECOGNIZE),
        count=128,
        bytes=LABEL_BYTES,
        values=128,
    ),
)
_TOOLS = (
    # 32: values of a tool and its schema, on average
    _many("tools", Kind.OBJECTS, *_RENDERED, RequestRoute.RESPONSES, count=TOOLS, values=32),
    _many("tools", Kind.OBJECTS, *_TEMPLATED, count=TOOLS),
    _text("tools.name", TOOL_NAME_BYTES, *_CHATS, RequestRoute.RESPONSES),
    _text("tools.description", TOOL_TEXT_BYTES, *_CHATS, RequestRoute.RESPONSES),
    _text("tools.parameters", SCHEMA_BYTES, *_CHATS, RequestRoute.RESPONSES),
    _many("tools.headers", Kind.MAP, RequestRoute.RESPONSES, count=16, bytes=8 << 10),
    # A word, or an object that names a tool, or the tools that are allowed
    _many("tool_choice", Kind.MAP, *_CALLERS, count=TOOLS, bytes=TOOL_NAME_BYTES, values=4),
    _many("allowed_tools", Kind.TEXTS, *_TEMPLATED, count=TOOLS, bytes=TOOL_NAME_BYTES),
    _text("tool_choice", TOOL_NAME_BYTES, *_TEMPLATED),
    _text("tool_name", TOOL_NAME_BYTES, *_TEMPLATED),
    _flag("parallel_tool_calls", *_CALLERS),
    # 16: values of an entry
    _many(
        "chat_template_kwargs",
        Kind.MAP,
        *_RENDERED,
        RequestRoute.RESPONSES,
        count=32,
        bytes=TEMPLATE_BYTES,
        values=16,
    ),
    _text("chat_template_kwargs", TEMPLATE_BYTES, *_TEMPLATED),
    _flag("add_generation_prompt", *_RENDERED),
    _flag("continue_final_message", *_RENDERED),
    _many("mm_processor_kwargs", Kind.MAP, *_RENDERED, count=8, bytes=FIELD_NAME_BYTES),
    _text("reasoning_effort", 16, RequestRoute.CHAT),
    _flag("include_reasoning", RequestRoute.CHAT),
)
_REPLIES = (
    _flag("stream", *_GENERATED),
    _many("stream_options", Kind.MAP, *_GENERATED, count=MOST_FIELDS, bytes=FIELD_NAME_BYTES),
    _flag("logprobs", RequestRoute.CHAT),
    _integer("logprobs", 0, MOST_LOGPROBS, RequestRoute.COMPLETIONS),
    _flag("logprobs", *_OLLAMA),
    _integer("top_logprobs", 0, MOST_LOGPROBS, *_CALLERS, *_OLLAMA),
    _integer("prompt_logprobs", 0, MOST_LOGPROBS, *_OPENAI, *_OURS),
    _flag("echo", RequestRoute.COMPLETIONS, *_OURS),
    _text("suffix", TEXT_BYTES, RequestRoute.COMPLETIONS, RequestRoute.OLLAMA_GENERATE, *_OURS),
    _flag("return_token_ids", *_OPENAI, *_OURS),
    _flag("return_routed_experts", *_OPENAI, *_OURS),
    _flag("return_tokens_as_token_ids", *_OPENAI),
    _integer("truncate_prompt_tokens", -1, _INT32, *_OPENAI, *_OURS),
    _flag(
        "add_special_tokens",
        *(*_OPENAI, *_OURS, RequestRoute.TOKENIZE, RequestRoute.TEXT_TO_TOKENS),
    ),
    _flag("return_token_strs", RequestRoute.TEXT_TO_TOKENS),
    _flag("token_texts", RequestRoute.TOKENIZE),
    _flag("skip_special_tokens", *_OPENAI, *_OURS),
    _flag("spaces_between_special_tokens", *_OPENAI),
    _flag("include_stop_str_in_output", *_OPENAI, *_OURS),
    _text("encoding_format", 16, RequestRoute.EMBEDDINGS),
    _text("task", 32, RequestRoute.EMBEDDINGS),
    _text("aggregation_strategy", 16, RequestRoute.CLASSIFY),
    _many("ignore_labels", Kind.TEXTS, RequestRoute.CLASSIFY, count=1024, bytes=TEXT_BYTES),
    _integer("dimensions", 1, _INT32, RequestRoute.EMBEDDINGS),
    _integer("dimensions", 0, _INT32, RequestRoute.EMBED),
    _text("prompt_name", LABEL_BYTES, RequestRoute.EMBEDDINGS, RequestRoute.EMBED),
    _integer("top_n", 1, _INT32, RequestRoute.RERANK),
    _flag("return_documents", RequestRoute.RERANK),
)
_LABELS = (
    _text("user", LABEL_BYTES, *_V1, *_TOKENS),
    _text("safety_identifier", LABEL_BYTES, *_V1, *_TOKENS),
    _text("prompt_cache_key", LABEL_BYTES, *_GENERATED),
    _text("prompt_cache_retention", 64, *_CALLERS),
    _many("prompt_cache_options", Kind.MAP, *_CALLERS, count=8, bytes=LABEL_BYTES, values=4),
    # 64: parts of a text, each with its type
    _many("prediction", Kind.MAP, RequestRoute.CHAT, count=8, bytes=TEXT_BYTES, values=64),
    _text("cache_salt", LABEL_BYTES, *_GENERATED, *_OURS),
    _many(
        "metadata",
        Kind.MAP,
        *(*_V1, *_TOKENS, RequestRoute.BATCHES, RequestRoute.CONVERSATIONS),
        count=16,
        bytes=LABEL_BYTES,
    ),
    _text("request_id", LABEL_BYTES, *_OURS),
    # Of an answer that goes on; its names as in `sax.types.AnswerSoFar`
    RequestField(
        name="answer.token_ids", kind=Kind.IDS, routes=_OURS, least=0, most=_INT32, count=TOKEN_IDS
    ),
    _integer("answer.prompt_logprobs", 0, TOKEN_IDS, *_OURS),
    _text("answer.version", LABEL_BYTES, *_OURS),
    _text("token", 4096, *_OURS),
    _text("account", 256, *_OURS),
)
_SPEC = (
    _text("model_path", MODEL_PATH_BYTES, *_SPECS),
    _text("checkpoint", CHECKPOINT_BYTES, *_LOADED),
    _integer("replicas", 0, MOST_REPLICAS, *_SPECS),
    # 16: a value may be a short list
    _many("overrides", Kind.MAP, *_LOADED, count=OVERRIDES, bytes=OVERRIDE_BYTES, values=16),
    _many("acls", Kind.MAP, RequestRoute.ADMIN_PUBLISH, count=ACLS, bytes=OVERRIDE_BYTES),
    _text("admin_acl", CHECKPOINT_BYTES, RequestRoute.ADMIN_PUBLISH),
    _many("placement.tags", Kind.TEXTS, RequestRoute.ADMIN_PUBLISH, count=TAGS, bytes=TAG_BYTES),
    _integer("min_replicas", 0, _INT32, *_SPECS),
    _integer("max_replicas", 1, _INT32, *_SPECS),
    _number("target_queue", *_SPECS, above=0),
    _integer("revision", 1, _INT64, RequestRoute.UPDATE, RequestRoute.CANARY),
    RequestField(
        name="percent", kind=Kind.NUMBER, routes=(RequestRoute.CANARY,), above=0, most=100
    ),
)
_WEIGHTS = (
    _text("action", 16, RequestRoute.WEIGHTS),
    _text("checkpoint", CHECKPOINT_BYTES, RequestRoute.WEIGHTS),
    _text("version", 64, RequestRoute.WEIGHTS),
    _text("expected", 64, RequestRoute.WEIGHTS),
    _flag("partial", RequestRoute.WEIGHTS),
    _text("mode", 16, RequestRoute.WEIGHTS),
)
_HISTORY = (
    _text("version", 32, RequestRoute.ROLLBACK),
    _integer("before", 0, _INT64, RequestRoute.EVENTS),
    _integer("limit", 1, 1000, RequestRoute.EVENTS),
)

# Fields of Anthropic's bodies, in its own bounds; shared ones are above.
_MESSAGES = (
    _integer("max_tokens", 1, _INT32, RequestRoute.MESSAGES),
    _number("temperature", RequestRoute.MESSAGES, least=0, most=1),
    _number("top_p", RequestRoute.MESSAGES, least=0, most=1),
    _integer("top_k", 0, _INT32, RequestRoute.MESSAGES),
    _many("stop_sequences", Kind.TEXTS, RequestRoute.MESSAGES, count=16, bytes=1024),
    _flag("stream", RequestRoute.MESSAGES),
    # 32: values of a tool and its schema, on average
    _many("tools", Kind.OBJECTS, *_ANTHROPIC, count=TOOLS, values=32),
    _many("tool_choice", Kind.MAP, *_ANTHROPIC, count=3, bytes=TOOL_NAME_BYTES),
    _many("thinking", Kind.MAP, *_ANTHROPIC, count=4, bytes=FIELD_NAME_BYTES, values=2),
    _integer("thinking.budget_tokens", 1, _INT32, *_ANTHROPIC),
    # 256: values of a schema
    _many("output_config", Kind.MAP, *_ANTHROPIC, count=3, bytes=FIELD_NAME_BYTES, values=256),
    # 64: values of an edit
    _many("context_management", Kind.MAP, *_ANTHROPIC, count=2, bytes=LABEL_BYTES, values=64),
    # 16: values of a server, those of its tool_configuration among them
    _many("mcp_servers", Kind.OBJECTS, *_ANTHROPIC, count=16, values=16),
    _text("mcp_servers.authorization_token", 8 << 10, *_ANTHROPIC),
    _many("betas", Kind.TEXTS, *_ANTHROPIC, count=64, bytes=FIELD_NAME_BYTES),
    _text("anthropic_version", LABEL_BYTES, *_ANTHROPIC),
    _many("fallbacks", Kind.OBJECTS, *_ANTHROPIC, count=16, bytes=LABEL_BYTES, values=16),
    _many("diagnostics", Kind.MAP, *_ANTHROPIC, count=4, bytes=LABEL_BYTES),
    _many("metadata", Kind.MAP, RequestRoute.MESSAGES, count=1, bytes=LABEL_BYTES),
)

_FILES = (
    _text("filename", 255, RequestRoute.FILES),
    _text("purpose", 64, RequestRoute.FILES),
    # OpenAI's own bounds: an hour and a month
    _integer("expires_after.seconds", 3600, 2592000, RequestRoute.FILES),
    _text("input_file_id", LABEL_BYTES, RequestRoute.BATCHES),
    _text("endpoint", LABEL_BYTES, RequestRoute.BATCHES),
    _text("completion_window", 16, RequestRoute.BATCHES),
    _many("output_expires_after", Kind.MAP, RequestRoute.BATCHES, count=2, bytes=16),
)

# Ollama's option -> the field of the table that it stands for
OLLAMA_OPTIONS = {
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "repeat_penalty": "repetition_penalty",
}
LLAMA_CPP_SAMPLING = OLLAMA_OPTIONS  # which are llama.cpp's
_INFILL_FIELDS = (
    *(
        RequestField(
            name=name, kind=SAMPLING[ours].kind, routes=(_INFILL,), **SAMPLING[ours].bounds
        )
        for name, ours in LLAMA_CPP_SAMPLING.items()
    ),
    *(_text(name, TEXT_BYTES, _INFILL) for name in ("input_prefix", "input_suffix", "prompt")),
    # 4: a name, a text and a time
    _many("input_extra", Kind.OBJECTS, _INFILL, count=64, values=4),
    _text("input_extra.text", 1 << 20, _INFILL),
    _many("response_fields", Kind.TEXTS, _INFILL, count=MOST_FIELDS, bytes=FIELD_NAME_BYTES),
    _integer("n_predict", -2, _INT32, _INFILL),
    _integer("n_indent", 0, 1000, _INFILL),
    _integer("seed", -(2**53), 2**53, _INFILL),
    _flag("stream", _INFILL),
    _flag("cache_prompt", _INFILL),
    *(
        _integer(name, -1, _INT32, _INFILL)
        for name in ("id_slot", "n_keep", "t_max_predict_ms", "t_max_prompt_ms")
    ),
    _many("samplers", Kind.TEXTS, _INFILL, count=MOST_FIELDS, bytes=FIELD_NAME_BYTES),
)
_OLLAMA_FIELDS = (
    *(
        RequestField(
            name=f"options.{name}",
            kind=SAMPLING[ours].kind,
            routes=_OLLAMA,
            **SAMPLING[ours].bounds,
        )
        for name, ours in OLLAMA_OPTIONS.items()
    ),
    _integer("options.seed", -(2**53), 2**53, *_OLLAMA),  # exact in every client's JSON
    _integer("options.num_predict", -2, _INT32, *_OLLAMA),
    # 16: entries of `stop`
    _many("options", Kind.MAP, *_OLLAMA, count=MOST_FIELDS, bytes=1024, values=16),
    _many("options", Kind.MAP, *_OLLAMA_VECTORS, count=MOST_FIELDS, bytes=1024),
    # A word, or a schema, of which an entry has 256 values
    _many("format", Kind.MAP, *_OLLAMA, count=32, bytes=SCHEMA_BYTES, values=256),
    _many("tools", Kind.OBJECTS, RequestRoute.OLLAMA_CHAT, count=TOOLS, values=32),
    _flag("stream", *_OLLAMA),
    _flag("raw", RequestRoute.OLLAMA_GENERATE),
    _text("think", 16, *_OLLAMA),  # or true or false
    _text("keep_alive", 32, *_OLLAMA, *_OLLAMA_VECTORS),  # or a number of seconds
    _integer("dimensions", 1, _INT32, RequestRoute.OLLAMA_EMBED),
)

FIELDS = (
    *(*_NAMES, *_QUESTIONS, *_RESPONSES, *_SAMPLING, *_TOOLS, *_MESSAGES, *_OLLAMA_FIELDS),
    *(*_REPLIES, *_LABELS, *_FILES, *_SPEC, *_WEIGHTS, *_HISTORY, *_INFILL_FIELDS),
)
_BY_ROUTE = {
    route: {field.name: field for field in FIELDS if route in field.routes}
    for route in RequestRoute
}


def field(route: RequestRoute, name: str) -> RequestField:
    return _BY_ROUTE[route][name]


def fields_of(route: RequestRoute) -> dict[str, RequestField]:
    return _BY_ROUTE[route]


def most_bytes(route: RequestRoute) -> int:
    """Return how large a JSON body of the route is at most, with every character escaped."""
    fields = fields_of(route).values()
    texts = sum((each.bytes or 0) * (each.count or 1) for each in fields)
    return (64 << 10) + 6 * texts + 16 * most_values(route)


def most_parts(route: RequestRoute) -> int:
    """Return how many lists, objects and names of fields a body of the route holds at most.

    A parser takes a microsecond or two for each, ten times as long as for a number.
    """
    return MOST_FIELDS + sum(
        (each.count or 1) * each.values + 1 for each in fields_of(route).values()
    )


def most_values(route: RequestRoute) -> int:
    """Return how many JSON values a body of the route holds at most: its parts and token ids."""
    return most_parts(route) + sum(each.tokens or 0 for each in fields_of(route).values())
