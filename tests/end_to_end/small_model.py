"""Saxml's test model of random weights, shrunk by overrides: a moment to load and to ask."""

from __future__ import annotations

import json

MODEL = "/sax/test/spmd"
PATH = "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest"
SMALL = {
    "NUM_LAYERS": 2,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 128,
    "NUM_HEADS": 2,
    "DIMS_PER_HEAD": 32,
    "VOCAB_SIZE": 512,
}
# As words of a command line.
WORDS = tuple(f"{key}={json.dumps(value)}" for key, value in SMALL.items())
