"""Runs a role of a Pathways deployment.

python -m model_server.pathways --node_type=resource_manager|worker|proxy_server|local ...
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Sequence

import uvloop

from model_server.pathways.roles.flags import LOCAL, WORKER, parse
from model_server.pathways.roles.running import serve
from model_server.process.heap import keep_freed_memory
from sax.errors import InvalidRequest, SaxError

_FAILED, _WRONG = 1, 2


def main(arguments: Sequence[str]) -> int:
    """Run until a signal comes; returns the exit status."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname).1s %(message)s", datefmt="%H:%M:%S"
    )
    try:
        flags = parse(arguments, os.environ)
        if flags.role in (WORKER, LOCAL):
            keep_freed_memory()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(flags))
    except InvalidRequest as error:
        return _say(error.text, _WRONG)
    except SaxError as error:
        return _say(error.text, _FAILED)
    except OSError as error:
        return _say(str(error), _FAILED)
    return 0


def _say(text: str, status: int) -> int:
    sys.stderr.write(f"model_server.pathways: {text}\n")
    return status


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the executor may wait for devices for ever
