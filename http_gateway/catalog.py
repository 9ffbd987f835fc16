"""Cache of the published models, and resolution of model names.

The admin is not on the request path: known names are resolved from memory, and a list older than
a second is refreshed in the background. Only an unknown name waits for the admin.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from http_gateway.access import RequestRecord
from http_gateway.cell_client import CellClient
from http_gateway.limits import check_allowed, visible
from sax.auth.acl import caller
from sax.auth.credentials import own_account, told_to_user
from sax.errors import AdminUnavailable, InvalidRequest, ModelNotFound, SaxError
from sax.fields.field import RequestRoute
from sax.fields.table import field
from sax.format import quoted, shortened
from sax.names import ModelId, nearest
from sax.types import PublishedModel

_FRESH_S = 1.0
_ADMIN_TIMEOUT_S = 5.0


class Catalog:
    """Cache of `list_all`, shared by every route of one gateway."""

    def __init__(self, client: CellClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._models: Sequence[PublishedModel] = ()
        self._published: frozenset[str] = frozenset()
        self._seen_at: float | None = None
        self._refreshing: asyncio.Task[None] | None = None

    @property
    def names(self) -> frozenset[str]:
        """Full names of all models as last seen; empty before the first refresh."""
        return self._published

    @property
    def models(self) -> Sequence[PublishedModel]:
        """The models as last seen that the caller's key may use."""
        return visible(self._models)

    async def refresh(self) -> Sequence[PublishedModel]:
        """Fetch the list from the admin; concurrent callers share one call. Returns the models that
        the caller's key may use."""
        try:
            await asyncio.shield(self._start_refresh())
        except SaxError as error:
            raise told_to_user(error) from error
        return self.models

    async def resolve(self, name: str) -> str:
        """Return the full name of a model given by its full name or last component.

        Raises ModelNotFound, PermissionDenied for a model that the caller's key may not use, or
        InvalidRequest for an ambiguous name or one too long for a model.
        """
        field(RequestRoute.MODEL, "name").check_text(name, "model")
        if name.startswith("/"):
            return await self.require(str(ModelId.parse(name)))
        if len(found := self._usable(name)) == 1:
            self._keep_fresh()
            return self._concern(found[0])
        await self.refresh()
        if len(found := self._usable(name)) > 1:
            raise InvalidRequest(
                f"{quoted(name)} is ambiguous ({', '.join(found)}): give the full name",
                param="model",
            )
        if not (found or (found := self._with_last_part(name))):
            raise self._not_found(name)
        return self._concern(found[0])  # refused there if the key may use none of them

    async def resolve_or_only(self, name: str | None) -> str:
        """Like `resolve`; without a name, return the only model there is.

        Raises ModelNotFound if there is none, InvalidRequest if there are several.
        """
        if name is not None:
            return await self.resolve(name)
        if len(self._names()) != 1:
            await self.refresh()
        self._keep_fresh()
        names = self._names()
        if len(names) > 1:
            listed = f"{', '.join(sorted(names)[:3])}{', ...' if len(names) > 3 else ''}"
            raise InvalidRequest(f"model is missing: give one of {listed}", param="model")
        if not names:
            raise ModelNotFound("no model is published yet", param="model")
        return self._concern(names[0])

    async def require(self, model_id: str) -> str:
        """Return `model_id` if it is published. Raises ModelNotFound, PermissionDenied."""
        if model_id in self._published:
            self._keep_fresh()
            return self._concern(model_id)
        try:
            await self.refresh()
        except AdminUnavailable:
            check_allowed(model_id)
            return model_id  # the locator may still know it
        if model_id not in self._published:
            raise self._not_found(model_id)
        return self._concern(model_id)

    def _concern(self, model_id: str) -> str:
        """Note a published model as that of the current request, if its key may use it."""
        check_allowed(model_id)
        RequestRecord.current().model = model_id
        return model_id

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(_ADMIN_TIMEOUT_S):
                self._models = tuple(await self._client.list_all())
            self._published = frozenset(model.spec.model_id for model in self._models)
            self._seen_at = self._clock()
        except TimeoutError as exc:
            raise AdminUnavailable(
                f"the admin server did not answer within {_ADMIN_TIMEOUT_S:g} s; "
                "check that it is running and that --admin is right"
            ) from exc
        finally:
            self._refreshing = None

    def _start_refresh(self) -> asyncio.Task[None]:
        if self._refreshing is None:
            # Shared by all users, so it runs under the gateway's own identity.
            self._refreshing = asyncio.create_task(self._refresh(), context=own_account())
            self._refreshing.add_done_callback(_retrieve)
        return self._refreshing

    def _keep_fresh(self) -> None:
        if self._seen_at is None or self._clock() - self._seen_at > _FRESH_S:
            self._start_refresh()

    def _names(self) -> list[str]:
        """Full names of the models that the caller's key may use, in the admin's order."""
        return [model.spec.model_id for model in self.models]

    def _usable(self, name: str) -> list[str]:
        """Return the models with this last component that the caller's key may use."""
        return [*filter(caller().limits.allows, self._with_last_part(name))]

    def _with_last_part(self, name: str) -> list[str]:
        every = (model.spec.model_id for model in self._models)
        return [known for known in every if known.rpartition("/")[2] == name]

    def _not_found(self, name: str) -> ModelNotFound:
        names = self._names()
        close = nearest(name, names) or sorted(names)[:3]
        hint = f"the nearest names are {', '.join(close)}" if names else "nothing is published yet"
        return ModelNotFound(f"model {shortened(name)} is not published; {hint}", param="model")


def _retrieve(task: asyncio.Task[None]) -> None:
    """Ignore the SaxError of a background refresh: the next unknown name retries and reports it."""
    if not task.cancelled() and not isinstance(task.exception(), SaxError | None):
        task.result()
