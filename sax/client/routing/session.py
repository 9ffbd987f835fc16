"""Session: a name that keeps the requests of one conversation together.

They go to one replica while it is not clearly busier than others, and to one version of a model
that has a canary, without a look at their prompts. A name is compared, never sent on.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b

from sax.client.routing.affinity import Affinity, PrefixKey
from sax.errors import InvalidRequest
from sax.fields.table import LABEL_BYTES

_current: ContextVar[str] = ContextVar("session", default="")


def current_session() -> str:
    """Return the session of the requests that this task makes; "" for none."""
    return _current.get()


@contextmanager
def in_session(session: str) -> Generator[None]:
    """Give this session to all requests made inside that name none themselves."""
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)


def check_session(session: str, param: str) -> str:
    """Return the name of a session. Raises InvalidRequest naming `param`."""
    size = len(session.encode(errors="surrogatepass"))
    if not 0 < size <= LABEL_BYTES:
        raise InvalidRequest(
            f"{param} has {size} bytes: name a session with 1 to {LABEL_BYTES} of them", param=param
        )
    return session


def within_session(model_id: str, affinity: Affinity, session: str = "") -> Affinity:
    """Return the affinity of a request in a session, which counts more than its prompt."""
    name = session or current_session()
    if not name:
        return affinity
    text = f"{model_id}\x1f{name}".encode(errors="surrogatepass")
    digest = blake2b(text, digest_size=8, person=b"session").digest()
    return Affinity((PrefixKey(digest, 1.0),), home_share=1.0, session=digest)
