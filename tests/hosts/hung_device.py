"""Imported by both hosts of a replica (`--import`): on host 1 no step begins once a file exists.

The host lives on and sends heartbeats, as one does whose device waits for ever.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from model_server.engine.running.compiled_steps import Launched
from model_server.engine.running.runner import ModelRunner
from model_server.engine.types import Step

VARIABLE = "SAX_TEST_HANGS"  # the path of the file
_launch = ModelRunner.launch


def launch(runner: ModelRunner, *steps: Step) -> Launched:
    if "--host_ordinal=1" in sys.argv and Path(os.environ[VARIABLE]).exists():
        threading.Event().wait()
    return _launch(runner, *steps)


ModelRunner.launch = launch  # type: ignore[method-assign]
