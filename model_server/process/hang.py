"""The end of a process whose device hangs: stacks to the log, then everybody is told."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable

from model_server.config import HUNG
from model_server.engine.timing.watchdog import StepHung
from sax.errors import ReplicaLost

logger = logging.getLogger(__name__)

_LAST_S = 15.0  # for requests to fail and other hosts to be told; then it ends whatever hangs too


def tell_of_hang(hung: StepHung, give_up: Callable[[ReplicaLost], None]) -> None:
    """Log the error and the stacks of all threads, and give the replica up; called on any thread.

    The process ends within some seconds, even if its event loop hangs too.
    """
    logger.critical("%s", hung.text)
    faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
    last = threading.Timer(_LAST_S, os._exit, (HUNG,))
    last.daemon = True
    last.start()
    give_up(hung)
