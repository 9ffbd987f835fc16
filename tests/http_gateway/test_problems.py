import json

import pytest
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from http_gateway.problems import answer, describe
from sax.errors import (
    TABLE,
    Internal,
    ModelNotFound,
    ModelNotReady,
    PromptTooLong,
    QueueFull,
    SaxError,
    UnsupportedParameter,
)
from tests.each_case import each_case

# Written out by hand: this is the contract, not a copy of the code.
STATUS_AND_OPENAI_CODE = {
    "InvalidRequest": (400, "invalid_request_error", "invalid_request"),
    "InvalidName": (400, "invalid_request_error", "invalid_name"),
    "UnsupportedParameter": (400, "invalid_request_error", "unsupported_parameter"),
    "PromptTooLong": (400, "invalid_request_error", "context_length_exceeded"),
    "Unauthenticated": (401, "authentication_error", "invalid_api_key"),
    "PermissionDenied": (403, "permission_error", "permission_denied"),
    "NotFound": (404, "invalid_request_error", "not_found"),
    "ModelNotFound": (404, "invalid_request_error", "model_not_found"),
    "ModelPathNotFound": (404, "invalid_request_error", "model_path_not_found"),
    "ModelExists": (409, "invalid_request_error", "model_exists"),
    "StaleRevision": (409, "invalid_request_error", "stale_revision"),
    "QueueFull": (429, "rate_limit_error", "rate_limit_exceeded"),
    "LimitExceeded": (429, "rate_limit_error", "rate_limit_exceeded"),
    "Unavailable": (503, "server_error", "unavailable"),
    "AdminUnavailable": (503, "server_error", "admin_unavailable"),
    "NotLeading": (503, "server_error", "not_leading"),
    "ModelNotReady": (503, "server_error", "model_not_ready"),
    "NotLoaded": (503, "server_error", "not_loaded"),
    "ReplicaLost": (503, "server_error", "replica_lost"),
    "StateLost": (503, "server_error", "state_lost"),
    "NotRetried": (400, "invalid_request_error", "not_retried"),
    "ShuttingDown": (503, "server_error", "shutting_down"),
    "LoadFailed": (400, "invalid_request_error", "load_failed"),
    "CheckpointError": (400, "invalid_request_error", "checkpoint_error"),
    "CheckpointNotFound": (400, "invalid_request_error", "checkpoint_not_found"),
    "CheckpointUnreachable": (400, "invalid_request_error", "checkpoint_unreachable"),
    "MemoryPlanError": (400, "invalid_request_error", "memory_plan_error"),
    "DeadlineExceeded": (504, "server_error", "deadline_exceeded"),
    "Cancelled": (499, "invalid_request_error", "cancelled"),
    "Internal": (500, "server_error", "internal"),
}


class Turn(BaseModel):
    role: str


class Chat(BaseModel):
    messages: list[Turn]


def invalid(body: str) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Chat.model_validate_json(body)
    return caught.value


def test_every_class_of_the_table_has_an_expected_answer():
    assert {kind.__name__ for kind in TABLE} == set(STATUS_AND_OPENAI_CODE)


@each_case("kind", TABLE)
def test_every_error_is_told_in_the_words_of_its_api_family(kind: type[SaxError]):
    status, openai_type, code = STATUS_AND_OPENAI_CODE[kind.__name__]
    error = kind("what and what to do", param="model")
    openai = answer("/v1/completions", error, 2)
    assert (openai.status_code, json.loads(bytes(openai.body))) == (
        status,
        {
            "error": {
                "message": "what and what to do",
                "type": openai_type,
                "param": "model",
                "code": code,
            }
        },
    )
    saxml = answer("/generate", error, 2)
    assert (saxml.status_code, bytes(saxml.body)) == (status, b'{"detail":"what and what to do"}')
    old = answer("/generate", error, 1)
    expected = b'{\n    "Error": "what and what to do"\n}\n'
    # Generation 1 never asked who calls: beside that it knows one status.
    assert (old.status_code, bytes(old.body)) == (status if status in (401, 403) else 400, expected)
    assert ("www-authenticate" in saxml.headers) == (status == 401)
    assert ("retry-after" in saxml.headers) == (status in (429, 503))


@each_case("kind", TABLE)
def test_anthropics_errors_have_its_types(kind: type[SaxError]):
    status, _, code = STATUS_AND_OPENAI_CODE[kind.__name__]
    told = answer("/v1/messages/count_tokens", kind("what to do"), 2, "r1")
    types = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
        500: "api_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
    error = {
        "type": types.get(status, "invalid_request_error"),
        "message": f"{'prompt is too long: ' if kind is PromptTooLong else ''}what to do",
        "details": {"error_code": code},
    }
    assert told.status_code == status
    assert json.loads(bytes(told.body)) == {"type": "error", "error": error, "request_id": "r1"}
    assert told.headers["request-id"] == "r1"


@each_case("kind", TABLE)
def test_ollamas_errors_are_a_text(kind: type[SaxError]):
    told = answer("/api/chat", kind("what to do", param="model"), 2)
    assert told.status_code == STATUS_AND_OPENAI_CODE[kind.__name__][0]
    assert bytes(told.body) == b'{"error":"what to do"}'


def test_a_subclass_without_a_line_of_its_own_is_told_as_its_parent():
    class Strange(PromptTooLong):
        pass

    assert describe(Strange("5000 > 4096")).status == 400


def test_retry_after_is_whole_seconds_and_never_zero():
    assert answer("/v1", QueueFull("full", retry_after_s=2.1), 2).headers["retry-after"] == "3"
    assert answer("/v1", QueueFull("full", retry_after_s=0.01), 2).headers["retry-after"] == "1"
    assert answer("/v1", ModelNotReady("loading"), 2).headers["retry-after"] == "1"
    assert "retry-after" not in answer("/v1", Internal("bug"), 2).headers


def test_malformed_json_is_a_400_and_a_wrong_field_a_422_that_names_it():
    assert answer("/publish", invalid("{"), 2).status_code == 400
    wrong = answer("/publish", invalid('{"messages":[{"role":1}]}'), 2)
    assert wrong.status_code == 422
    assert json.loads(bytes(wrong.body)) == {
        "detail": [
            {
                "type": "string_type",
                "loc": ["body", "messages", 0, "role"],
                "msg": "Input should be a valid string",
            }
        ]
    }


def test_openai_has_no_422_and_names_a_field_by_its_path():
    wrong = answer("/v1/chat/completions", invalid('{"messages":[{"role":1}]}'), 2)
    assert wrong.status_code == 400
    assert json.loads(bytes(wrong.body))["error"]["param"] == "messages[0].role"


def test_an_unknown_url_has_each_familys_own_answer():
    error = HTTPException(404)
    assert bytes(answer("/nope", error, 2).body) == b'{"detail":"Not Found"}'
    assert bytes(answer("/nope", error, 1).body) == b'{\n    "message": "Invalid Request"\n}\n'
    assert json.loads(bytes(answer("/v1/nope", error, 1).body))["error"]["code"] == "unknown_url"
    assert answer("/v10", error, 2).body == answer("/nope", error, 2).body


def test_what_is_not_meant_for_the_caller_is_hidden():
    problem = describe(RuntimeError("secret path"))
    assert problem.status == 500
    assert "secret" not in problem.text


def test_codes_that_openai_clients_know_are_openais():
    assert describe(ModelNotFound("x")).code == "model_not_found"
    assert describe(UnsupportedParameter("x")).code == "unsupported_parameter"
