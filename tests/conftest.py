"""What holds for every test, in whichever process it runs."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from typing import Any

import hypothesis
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from sax.config import STRICT_VARIABLE
from tests.demo_model import COMPILE_CACHE

# Fixtures for every folder; a server starts when the first test wants it.
from tests.model_server.checkpoints.fixtures import (  # noqa: F401
    bucket_root,
    bucket_server,
    folder,
    gguf_file,
    one_bucket_server,
    smollm2,
)
from tests.processes import QUICK_COMPILER
from tests.stores.fixtures import azurite_place, gcs_place, moto_place, place, seaweed_place  # noqa: F401
from tests.targets import is_quick
from tests.work_units import WorkUnits

# A shell starts its background jobs with SIGINT ignored, and a process hands that on to those it
# starts: `make test &` would wait for ever for what Ctrl-C should end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# With libtpu installed, which compiles for TPUs, jax looks for a TPU in every process and says at
# length that there is none. Whoever tests on an accelerator names it in this variable.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# All workers, all runs and the processes that tests start share what XLA compiled, however small:
# small programs are most of what the suite compiles. Keys hold the program, the compiler's options
# and the features of the machine.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(COMPILE_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# Whoever sets the variable, even to nothing, chooses how XLA compiles.
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ.setdefault("XLA_FLAGS", QUICK_COMPILER)

# A program that is compiled while serving is an error in every process that a test starts.
os.environ.setdefault(STRICT_VARIABLE, "1")

# httpx gives up after five seconds, which may pass on a busy machine before a process answers that
# has just started. What hangs meets the test's own time limit.
for _phase in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _phase, 60.0)

# A deadline for one example asserts the speed of a machine that may be busy with other tests.
# `make test` asks for fewer examples, the night for as many as Hypothesis takes by itself.
hypothesis.settings.register_profile(
    "sax", deadline=None, max_examples=int(os.environ.get("SAX_EXAMPLES", "100"))
)
hypothesis.settings.load_profile("sax")

pytest_plugins = ["tests.budget"]


# Servers that only the dependency group `dev` brings.
STORE_SERVERS = {"azurite_place", "gcs_place", "moto_place", "seaweed_place"}


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from every module and test that there is, which never are garbage.

    Walking them takes it a third of the time that collecting tests takes, and then half a second
    whenever it looks at everything.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)  # tests make few cycles, and jax adds to the cost of each look
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WorkUnits | None:
    return WorkUnits(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make test` runs (tests/targets.py)."""
    for item in items:
        longer = any(item.get_closest_marker(name) for name in ("extended", "nightly"))
        longer = longer or not STORE_SERVERS.isdisjoint(getattr(item, "fixturenames", ()))
        if not longer and is_quick(item.nodeid):
            item.add_marker("quick")
