"""AccessLine: one HTTP request as one line of the log. It never holds a prompt, an answer or a key.

The route is its template, not what the client wrote, and the model is a published one.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass

from http_gateway.access.record import RequestRecord
from sax.flags.last_lines import LastLines

log = logging.getLogger("http_gateway.access")

# Logged only if they fail.
_QUIET = ("/healthz", "/readyz", "/health", "/ping", "/metrics", "/page/{name}")
_POLLED = ("/cell", "/cell/requests", "/cell/keys", "/cell/log")  # by an open page
_PLAIN = re.compile(r'[^\s"=]+')


@dataclass(frozen=True, slots=True)
class AccessLine:
    record: RequestRecord
    route: str
    status: int
    total_s: float
    bytes_in: int
    bytes_out: int

    def tell(self) -> None:
        """Log it, unless it is of a probe, a scrape or an open page that went well."""
        if self.status >= 400 or self.route not in (*_QUIET, *_POLLED):
            log.info(self)

    def fields(self) -> dict[str, object]:
        """Return the fields in their order, without those that say nothing."""
        record = self.record
        counted = record.tokens > 0
        fields: dict[str, object] = {
            "method": record.method,
            "route": self.route,
            "status": self.status,
            "model": record.model,
            "key": record.key,
            "prompt_tokens": record.prompt_tokens if counted else None,
            "completion_tokens": record.completion_tokens if counted else None,
            "queue_s": _rounded(record.queue_s),
            "first_token_s": _rounded(record.first_token_s),
            "total_s": round(self.total_s, 4),
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "ended": record.ending,
            "request_id": record.request_id,
            "trace_id": f"{record.span.context.trace_id:032x}" if record.span else None,
        }
        return {name: value for name, value in fields.items() if value not in (None, "")}

    def __str__(self) -> str:
        return " ".join([f"{name}={_text(value)}" for name, value in self.fields().items()])


def is_polled(path: str) -> bool:
    """Return True for what an open page asks for by itself: nobody looks for a trace of it."""
    return path in _POLLED or path.startswith("/page/")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _text(value: object) -> str:
    """Format as logfmt does: quoted where it would not be one word."""
    if not isinstance(value, str):
        return str(value)
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


_TEXT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Formats a record as an object: time, level, logger, message or the access line's fields."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.msg, AccessLine):
            told |= record.msg.fields()
        else:
            told["message"] = record.getMessage()
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)


def configure_log(log_format: str) -> None:
    """Send this process's log to stderr in this format."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler, LastLines()])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _utc(seconds: float) -> str:
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"
