"""Serves a function of your own: requests are JSON, answers come in batches from the device.

    PYTHONPATH=examples sax up --import custom_model      # a model server that knows it
    sax publish distances custom_model.Nearest None --wait
    python examples/custom_model.py                       # calls it

A model server imports this file; the same file, run as a program, is its client.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

NAMES = ("Oslo", "Paris", "Rome")
PLACES = ((59.9, 10.8), (48.9, 2.4), (41.9, 12.5))  # degrees north and east


def register_model() -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np

    from model_server.custom import CustomMethod, CustomModel, CustomProgram
    from model_server.models.registry import register

    def read(requests: Sequence[bytes]) -> Any:
        """Return an array [requests, 2] of float32."""
        return np.array([json.loads(request) for request in requests], np.float32)

    def nearest(weights: Mapping[str, Any], places: Any) -> Any:
        """Return the index of the nearest city of each place: [requests], int32."""
        apart = jnp.linalg.norm(places[:, None] - weights["places"], axis=-1)
        return jax.lax.argmin(apart, 1, jnp.int32)

    def write(found: Any) -> list[bytes]:
        return [NAMES[int(index)].encode() for index in found]

    def load(checkpoint: str | None, values: Mapping[str, Any]) -> CustomProgram:
        method = CustomMethod(
            pre_process=read,
            call=nearest,
            post_process=write,
            examples=(b"[0, 0]",),
            batch_sizes=(1, 8),
        )
        weights = {"places": np.array(PLACES, np.float32)}
        return CustomProgram(methods={"nearest": method}, weights=weights)

    register(CustomModel(path="custom_model.Nearest", load=load))


def main() -> None:
    from sax import Client

    with Client() as client:
        for place in ((50.8, 4.4), (45.5, 9.2), (59.3, 18.1)):
            request = json.dumps(place).encode()
            print(place, client.custom("/sax/test/distances", request, "nearest").decode())


if __name__ == "__main__":
    main()
else:
    register_model()
