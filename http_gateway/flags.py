"""Command-line flags of the gateway."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from http_gateway.config import GatewayConfig
from sax.errors import SaxError
from sax.flags.gateway_flags import add_gateway_flags

_DESCRIPTION = """\
The HTTP gateway of a sax cell: Saxml's routes (/publish, /listcell, /listall, /generate,
/update, /unpublish), OpenAI's (/v1/chat/completions, /v1/responses, /v1/batches, ...), vLLM's
(/tokenize, /pooling, /health), Anthropic's (/v1/messages), Ollama's (/api/chat, ...), and
/healthz, /readyz, /metrics; /docs describes them all, and a browser at / gets a page to chat and
watch the cell. Its state is in the cell and in the store of --files: run as many as you like."""

_EXAMPLE = """\
example:
  python -m http_gateway --admin 127.0.0.1:10000 --port 8888
  curl -s http://127.0.0.1:8888/v1/chat/completions --data \\
    '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'"""


def parse_flags(arguments: Sequence[str]) -> GatewayConfig:
    """Parse a command line; on a bad one, print the error and exit with status 2."""
    parser = make_parser()
    try:
        return GatewayConfig(**vars(parser.parse_args(arguments)))
    except (ValueError, SaxError) as error:
        parser.error(str(error))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="http_gateway",
        description=_DESCRIPTION,
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_gateway_flags(parser)
    return parser
