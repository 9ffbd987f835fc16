"""Handler of Saxml's Gradient: reads prefix and suffix as Score does, and batches them.

Runs on the event loop.
"""

from __future__ import annotations

from model_server.loading.loaded import Loaded
from model_server.loading.passes.loaded_passes import GradientInput, LoadedGradients
from model_server.serving.admission import Admission
from model_server.serving.chats.rendered_chat import rendered
from model_server.serving.handler import check_scorable
from model_server.serving.lm_servable import LmServable
from model_server.serving.passes.batch_calls import BatchCalls
from model_server.serving.query import scored_ids, scored_prompt
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from model_server.text.encoding import EncodingThreads, to_encode
from model_server.text.vocabulary_fit import check_rows
from sax.errors import PromptTooLong, UnsupportedParameter
from sax.passes import Gradients

GRADIENT = "lm.gradient"


class GradientCalls(BatchCalls[LoadedGradients]):
    def __init__(
        self,
        servables: Servables,
        admission: Admission,
        encoding: EncodingThreads | None = None,  # None: its own
    ) -> None:
        super().__init__(servables, admission, LoadedGradients)
        self._encoding = encoding or EncodingThreads()

    async def gradient(
        self, model_id: str, prefix: str, suffix: str, cost: BatchCost | None = None
    ) -> Gradients:
        """Return the suffix's log-probability and the gradients of the loss of both texts, and add
        their device time to the cost.

        Raises InvalidRequest and its subclasses, PermissionDenied, NotLoaded, QueueFull,
        ShuttingDown.
        """
        self._check_published(model_id)
        with self._request(model_id, GRADIENT) as part:
            servable = self._servables.get(model_id)
            assert isinstance(servable, LmServable), "the gradients are of its loss"
            given = await self._given(servable.loaded, part.loaded, prefix, suffix)
            return await part.ask(given, cost)

    def _check_published(self, model_id: str) -> None:
        """Raise UnsupportedParameter for a language model that was not published for Gradient."""
        self._admission.check_open()
        servable = self._servables.get(model_id)
        if isinstance(servable, LmServable) and servable.part(LoadedGradients) is None:
            raise UnsupportedParameter(
                f"{model_id} was not published for Gradient: publish it with "
                'TASKS=["generate", "gradient"]',
                param="model",
            )

    async def _given(
        self, loaded: Loaded, gradients: LoadedGradients, prefix: str, suffix: str
    ) -> GradientInput:
        asked = await rendered(scored_prompt(prefix, loaded), loaded)
        ids, target = await self._encoding.run(
            to_encode(len(prefix) + len(suffix), loaded.tokenizer),
            lambda: scored_ids(asked, suffix, loaded),
        )
        check_scorable(ids, target)
        whole = [*ids, *target]
        check_rows(whole, loaded.vocab, loaded.tokenizer)
        if len(whole) > gradients.max_context:
            raise PromptTooLong(
                f"prefix and suffix have {len(whole)} tokens and Gradient reads at most "
                f"{gradients.max_context}: send less text, or publish with a larger PASS_CONTEXT",
                param="suffix",
            )
        return GradientInput(whole, len(ids))
