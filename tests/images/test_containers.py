"""A cell of containers: the images really run, each at its strictest, and end when told to.

The network is this machine's, and every port is one of its loopback.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.images.conftest import Run
from tests.images.container import USER, Container
from tests.images.store import Image
from tests.processes import free_ports

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]

LOOPBACK = "--host=127.0.0.1"
MODEL = "/sax/test/spmd"
TINY = {
    "NUM_LAYERS": 2,
    "MODEL_DIMS": 64,
    "HIDDEN_DIMS": 128,
    "NUM_HEADS": 2,
    "DIMS_PER_HEAD": 32,
    "VOCAB_SIZE": 512,
}
PUBLICATION = {
    "model": MODEL,
    "model_path": "saxml.server.pax.lm.params.lm_cloud.LmCloudSpmd2BTest",
    "checkpoint": "None",
    "replicas": "1",
    "overrides": TINY,
}
_READY_S = 300.0

_LOOK = """
import importlib.util, json, os
def writable(folder):
    try:
        open(os.path.join(folder, "x"), "w").close()
    except OSError:
        return False
    return True
print(json.dumps({
    "jax": importlib.util.find_spec("jax") is not None,
    "user": os.getuid(),
    "writable": [folder for folder in ("/", "/opt/sax", "/tmp") if writable(folder)],
    "process": os.getpid(),
}))
"""


def until(check: Callable[[], bool], *containers: Container) -> None:
    """Wait for a server, with what the containers said if one ends or it takes too long."""
    end = time.monotonic() + _READY_S
    while True:
        try:
            if check():
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > end or not all(each.running for each in containers):
            pytest.fail("\n".join(each.said for each in containers))
        time.sleep(0.2)


def answers(url: str) -> Callable[[], bool]:
    return lambda: httpx.get(url, trust_env=False).status_code == 200


def ended(container: Container) -> tuple[int, str]:
    return container.wait(), container.said


def test_a_cell_of_containers_serves_a_model_and_drains(
    control: Image, model_cpu: Image, start: Run, tmp_path: Path
) -> None:
    admin_port, status, port, metrics, http = free_ports(5)
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)  # a volume, as fsGroup would make it writable
    volume: dict[str, Any] = {"volumes": {data: "/data"}}
    place: dict[str, Any] = {"environ": {"SAX_DIR": "/data"}, **volume}
    # That flags win over what the entry point makes of the environment is part of the test.
    flags = (LOOPBACK, f"--port={admin_port}", f"--status_port={status}")
    admin = start(control, "admin_server", *flags, **place)
    until(answers(f"http://127.0.0.1:{status}/healthz"), admin)
    # Both find the admin by what it wrote to the volume.
    flags = (LOOPBACK, f"--port={port}", f"--metrics_port={metrics}", "--slots=4")
    model = start(model_cpu, *flags, "--max_context=256", **place)
    environ = {"SAX_DIR": "/data", "PORT": str(http)}
    gateway = start(control, "http_gateway", LOOPBACK, environ=environ, **volume)
    until(answers(f"http://127.0.0.1:{http}/healthz"), admin, model, gateway)
    ask(f"http://127.0.0.1:{http}", admin, model, gateway)
    ends = [each.terminate() for each in (gateway, model, admin)]
    assert ends == [0, 0, 0], "\n".join(each.said for each in (gateway, model, admin))


def ask(url: str, *cell: Container) -> None:
    """Publish a tiny model, generate, unpublish: by the tutorial's routes."""
    with httpx.Client(base_url=url, trust_env=False, timeout=_READY_S) as http:
        published = http.post("/publish", json=PUBLICATION)
        assert published.status_code == 200, published.text
        until(answers(f"{url}/readyz"), *cell)
        answer = http.post("/generate", json={"model": MODEL, "query": "How are you?"})
        assert answer.status_code == 200, answer.text
        assert answer.json()
        assert http.post("/unpublish", json={"model": MODEL}).status_code == 200


def test_inside_one_is_nobody_and_writes_nowhere(image: Image, start: Run) -> None:
    status, said = ended(start(image, "-c", _LOOK, entry_point=["python"]))
    assert status == 0, said
    assert json.loads(said) == {
        "jax": "control" not in image.name,
        "user": USER,
        "writable": ["/tmp"],
        "process": 1,
    }


def test_the_control_image_has_the_command_line(control: Image, start: Run) -> None:
    status, said = ended(start(control, "--help", entry_point=["sax"]))
    assert status == 0, said
    assert "Serve JAX models" in said


@pytest.mark.parametrize("words", [("sax", "up"), ("python", "-m", "model_server")])
def test_what_needs_jax_says_so_in_the_control_image(
    control: Image, start: Run, words: tuple[str, ...]
) -> None:
    status, said = ended(start(control, entry_point=words))
    assert status == 2
    assert said.rstrip().endswith("pip install '.[cpu]' in a clone of sax")
    assert "Traceback" not in said


def test_an_admin_without_a_place_is_refused(control: Image, start: Run) -> None:
    status, said = ended(start(control, "admin_server"))
    assert status == 2
    assert said.startswith("sax.container: this admin server has nowhere to keep its state")


def test_the_compiler_in_the_tpu_image_compiles_our_programs(model_tpu: Image, start: Run) -> None:
    overrides = [f"--set={name}={value}" for name, value in TINY.items()]
    words = ("sax", "plan", "LmCloudSpmd2BTest", "--topology=v5e:2x2", "--slots=4", *overrides)
    status, said = ended(start(model_tpu, entry_point=words))
    assert status == 0, said
    assert "it fits v5e:2x2" in said
