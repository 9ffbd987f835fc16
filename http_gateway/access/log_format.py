"""The format of the gateway's log: text, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import time

from http_gateway.access.line import AccessLine

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
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _utc(seconds: float) -> str:
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03d}Z"
