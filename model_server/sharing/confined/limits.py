"""Limits of a process that reads what strangers wrote; it sets them itself when it starts."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from model_server.sharing.confined.pipe import read_frame, write_frame


def confine(memory: int, addresses: int) -> None:
    """Set the limits; not on systems that lack one of them, where the other limits still hold.

    memory: bytes that the process may allocate. addresses: bytes of address space, where mapped
    libraries and locales count.
    """
    limits = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_AS: addresses,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in limits.items():
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    # Signals for the server's group: its requests still need this process while it drains.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The timer's signal. libtpu has the server ignore it, which a child process inherits.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def serve(seconds: float, requests: int, answers: int, answer: Callable[[bytes], bytes]) -> None:
    """Answer one framed request after the other until the input ends; the kernel ends this process
    if one takes more than `seconds` of processor time. requests, answers: file descriptors.
    """
    while (frame := read_frame(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answered = answer(frame)
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_frame(answers, answered)


def run(answer: Callable[[bytes], bytes]) -> None:
    """Serve standard input to standard output with the arguments SECONDS NICENESS."""
    os.nice(int(sys.argv[2]))
    answers = os.dup(1)
    os.dup2(2, 1)  # nothing but answers may reach the server
    with suppress(BrokenPipeError):
        serve(float(sys.argv[1]), 0, answers, answer)
