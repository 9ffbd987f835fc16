"""Handler of Saxml's Gradient: reads prefix and suffix as Score does, and batches them.

Runs on the event loop.
"""

from __future__ import annotations

from model_server.loading.loaded import GradientInput
from model_server.serving.admission import Admission, check_method, refusal
from model_server.serving.chats.rendered_chat import rendered
from model_server.serving.gradient_queue import GradientQueue
from model_server.serving.handler import check_scorable
from model_server.serving.lm_servable import LmServable
from model_server.serving.query import scored_ids, scored_prompt
from model_server.serving.query_cost import BatchCost
from model_server.serving.servables import Servables
from model_server.text.encoding import EncodingThreads, to_encode
from model_server.text.vocabulary_fit import check_rows
from sax.auth.acl import caller
from sax.errors import PromptTooLong, UnsupportedParameter
from sax.types import Gradients

GRADIENT = "lm.gradient"


class GradientCalls:
    def __init__(
        self,
        servables: Servables,
        admission: Admission,
        encoding: EncodingThreads | None = None,  # None: its own
    ) -> None:
        self._servables = servables
        self._admission = admission
        self._encoding = encoding or EncodingThreads()

    async def gradient(
        self, model_id: str, prefix: str, suffix: str, cost: BatchCost | None = None
    ) -> Gradients:
        """Return the suffix's log-probability and the gradients of the loss of both texts, and add
        their device time to the cost.

        Raises InvalidRequest and its subclasses, PermissionDenied, NotLoaded, QueueFull,
        ShuttingDown.
        """
        self._admission.check_open()
        servable = self._servables.get(model_id)
        if not isinstance(servable, LmServable):
            raise refusal(servable, GRADIENT)
        if servable.gradients is None:
            raise UnsupportedParameter(
                f"{model_id} was not published for Gradient: publish it with "
                'TASKS=["generate", "gradient"]',
                param="model",
            )
        check_method(caller(), model_id, GRADIENT, self._servables.acls(model_id))
        with self._admission.request(servable, GRADIENT):
            given = await self._given(servable, servable.gradients, prefix, suffix)
            return await servable.gradients.gradients(given, cost)

    async def _given(
        self, servable: LmServable, queue: GradientQueue, prefix: str, suffix: str
    ) -> GradientInput:
        loaded = servable.loaded
        asked = await rendered(scored_prompt(prefix, loaded), loaded)
        ids, target = await self._encoding.run(
            to_encode(len(prefix) + len(suffix), loaded.tokenizer),
            lambda: scored_ids(asked, suffix, loaded),
        )
        check_scorable(ids, target)
        whole = [*ids, *target]
        check_rows(whole, loaded.vocab, loaded.tokenizer)
        if len(whole) > queue.max_context:
            raise PromptTooLong(
                f"prefix and suffix have {len(whole)} tokens and Gradient reads at most "
                f"{queue.max_context}: send less text, or publish with a larger PASS_CONTEXT",
                param="suffix",
            )
        return GradientInput(whole, len(ids))
