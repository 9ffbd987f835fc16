"""People with tokens, for tests of every server, and who can pretend to be one of them."""

from __future__ import annotations

from pathlib import Path

import grpc.aio

from sax.auth.credentials import SCHEME, TOKEN_KEY
from sax.auth.key_limits import UNLIMITED, KeyLimits
from sax.auth.token_file import new_token, token_line


class Identities:
    """A token file and the tokens that it takes."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.path = folder / "tokens"
        self.tokens = {name: new_token() for name in names}
        self.limits: dict[str, KeyLimits] = {}
        self.write()

    def write(self) -> None:
        """Bring the file up to date."""
        lines = [
            token_line(name, token, self.limits.get(name, UNLIMITED))
            for name, token in self.tokens.items()
        ]
        self.path.write_text("# who may call\n\n" + "\n".join(lines) + "\n")

    def metadata(self, name: str) -> grpc.aio.Metadata:
        """What a call of this person carries; "" for nobody, and any other name for a stranger."""
        if not name:
            return grpc.aio.Metadata()
        token = self.tokens.get(name, "sax_not-a-token-of-this-cell")
        return grpc.aio.Metadata((TOKEN_KEY, SCHEME + token))

    def headers(self, name: str) -> dict[str, str]:
        """The same for HTTP."""
        return {key: str(value) for key, value in self.metadata(name)}
