"""moto's S3 server: S3's answers in detail, from memory."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.stores.place import BUCKET, Place
from tests.stores.server_process import answers, running

_WHERE = re.compile(r"Running on (http://127\.0\.0\.1:\d+)")


@contextmanager
def moto_server(folder: Path) -> Iterator[Place]:
    """A server with an empty bucket."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with running(command, folder, _up, os.environ) as log:
        url = _url(log)
        httpx.put(f"{url}/{BUCKET}").raise_for_status()
        yield Place(f"s3://{BUCKET}", s3_environment(url))


def s3_environment(endpoint: str) -> dict[str, str]:
    """What leads an admin server to an S3 server that is not Amazon's."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "sax",
        "AWS_SECRET_ACCESS_KEY": "sax-secret",
        "AWS_REGION": "us-east-1",
    }


def _url(log: str) -> str:
    told = _WHERE.search(log)
    return told[1] if told else ""


def _up(log: str) -> bool:
    url = _url(log)
    return bool(url) and answers(f"{url}/moto-api/", 200)
