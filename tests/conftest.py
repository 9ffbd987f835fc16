"""What holds for every test, in whichever process it runs."""

from __future__ import annotations

import os
import signal

# Fixtures for every folder; a server starts when the first test wants it.
from tests.model_server.checkpoints.fixtures import (  # noqa: F401
    bucket_root,
    bucket_server,
    folder,
    gguf_file,
    one_bucket_server,
    smollm2,
)
from tests.stores.fixtures import (  # noqa: F401
    azurite_place,
    gcs_place,
    moto_place,
    place,
    seaweed_place,
)

# A shell starts its background jobs with SIGINT ignored, and a process hands that on to those it
# starts: `make test &` would wait for ever for what Ctrl-C should end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# With libtpu installed, which compiles for TPUs, jax looks for a TPU in every process and says at
# length that there is none. Whoever tests on an accelerator names it in this variable.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
