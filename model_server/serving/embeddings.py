"""Handler for embedding requests: checks every input, then batches them with all others.

Runs on the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from model_server.loading.loaded import LoadedEmbedder
from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.embed_servable import EmbedServable
from model_server.serving.engine_request import check_ids
from model_server.serving.servables import Servables
from model_server.text.encoding import EncodingThreads
from model_server.text.text_length import check_bytes, check_pieces
from sax.auth.acl import caller
from sax.errors import InvalidRequest, PromptTooLong
from sax.types import Embedded, EmbedInput

EMBED = "lm.embed"

_EACH = 50  # characters: an input costs some time to begin with


class Embeddings:
    def __init__(
        self,
        servables: Servables,
        admission: Admission,
        encoding: EncodingThreads | None = None,  # None: its own
    ) -> None:
        self._servables = servables
        self._admission = admission
        self._encoding = encoding or EncodingThreads()

    async def embed(self, model_id: str, inputs: Sequence[EmbedInput]) -> Embedded:
        """Return the vector of each input, in order.

        Raises InvalidRequest and its subclasses naming the input, PermissionDenied, NotLoaded,
        QueueFull, ShuttingDown.
        """
        self._admission.check_open()
        servable = self._servables.get(model_id)
        if not isinstance(servable, EmbedServable):
            raise refusal(servable, EMBED)
        check_method(caller(), model_id, EMBED, self._servables.acls(model_id))
        with self._admission.request(servable, EMBED):
            ids = await self._tokens(inputs, servable.loaded)
            vectors = await servable.embed(ids)
        return Embedded(vectors, sum(map(len, ids)))

    async def _tokens(
        self, inputs: Sequence[EmbedInput], loaded: LoadedEmbedder
    ) -> list[Sequence[int]]:
        if not inputs:
            raise InvalidRequest("input is empty: send at least one text to embed", param="input")
        characters = sum(len(each) + _EACH for each in inputs)
        return await self._encoding.run(characters, lambda: _encode(inputs, loaded))


def _encode(inputs: Sequence[EmbedInput], loaded: LoadedEmbedder) -> list[Sequence[int]]:
    return [_checked(each, index, len(inputs), loaded) for index, each in enumerate(inputs)]


def _checked(given: EmbedInput, index: int, count: int, loaded: LoadedEmbedder) -> Sequence[int]:
    """Return the ids of one input. Raises InvalidRequest, PromptTooLong."""
    which = "input" if count == 1 else f"input {index}"
    if not given:
        raise InvalidRequest(f"{which} is empty: send text or token ids", param="input")
    if isinstance(given, str):
        check_bytes(given, loaded.tokenizer, loaded.max_context, "input")
        check_pieces(given, loaded.tokenizer.encode, loaded.max_context, "input")
    ids: Sequence[int] = loaded.tokenizer.encode(given) if isinstance(given, str) else given
    check_ids(which, ids, loaded.vocab)
    if len(ids) > loaded.max_context:
        raise PromptTooLong(
            f"{which} has {len(ids)} tokens and this model reads at most {loaded.max_context}: "
            "send it in shorter parts",
            param="input",
        )
    return ids
