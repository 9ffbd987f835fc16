"""Checkpoints that several files look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from model_server.plan.checkpoint.convert import convert
from tests.demo_model import demo_model
from tests.model_server.checkpoints.bucket_server import BucketServer, serving
from tests.model_server.checkpoints.tiny_folder import write_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole tiny Hugging Face folder."""
    return write_tiny(tmp_path / "tiny")


@pytest.fixture
def gguf_file(folder: Path, tmp_path: Path) -> Path:
    """The same checkpoint as a GGUF file."""
    convert(str(folder), str(tmp_path / "tiny.gguf"))
    return tmp_path / "tiny.gguf"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The demo model's GGUF file (`make model`)."""
    return demo_model()


@pytest.fixture(scope="session")
def _bucket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with serving(tmp_path_factory.mktemp("buckets")) as server, pytest.MonkeyPatch.context() as env:
        # Tensorstore looks at the first of these once per process.
        env.setenv("TENSORSTORE_GCS_HTTP_URL", server.url)
        env.setenv("AWS_ENDPOINT_URL", server.url)
        env.setenv("AWS_ACCESS_KEY_ID", "test")
        env.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield server


@pytest.fixture
def bucket_server(_bucket_server: BucketServer, tmp_path: Path) -> BucketServer:
    """An empty server that gs:// and s3:// lead to; its `root` holds a folder per bucket."""
    _bucket_server.root = tmp_path / "buckets"
    _bucket_server.sent.clear()
    return _bucket_server


@pytest.fixture
def bucket_root(bucket_server: BucketServer) -> Path:
    """The folder of the buckets."""
    return bucket_server.root
