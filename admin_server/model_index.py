"""What is seen of each model, kept up to date as servers answer.

A model of which nothing changed is the very same value at every look, so that a planner can tell
at a glance what it need not think about again. How busy a server is counts as no change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from admin_server.seen import AclPush, Action, Failure, Place, SeenModel, by_model
from sax.types import ServableInfo, ServableStatus


class ModelIndex:
    """Told what each server holds; gives what is known of each model."""

    def __init__(self) -> None:
        self._by_address: dict[str, dict[str, ServableInfo]] = {}
        self._held: dict[str, dict[str, ServableInfo]] = {}  # the same by model
        self._changed: set[str] = set()  # models, since the last view
        self._busy: set[str] = set()  # models with more to them than what is held, at that view
        self._models: dict[str, SeenModel] = {}

    def put(self, address: str, servables: Iterable[ServableInfo]) -> bool:
        """The server holds these now; True if a plan may come out differently for it."""
        before = self._by_address.setdefault(address, {})
        after: dict[str, ServableInfo] = {}
        for servable in servables:
            if servable.status is not ServableStatus.NONE:
                after.setdefault(servable.model_id, servable)
        news = [
            model_id
            for model_id, servable in after.items()
            if (old := before.get(model_id)) is None or _differ(old, servable)
        ]
        for model_id in news:
            before[model_id] = after[model_id]
            self._held.setdefault(model_id, {})[address] = after[model_id]
        gone = [model_id for model_id in before if model_id not in after]
        for model_id in gone:
            del before[model_id]
            del self._held[model_id][address]
        self._changed.update(news, gone)
        return bool(news or gone)

    def touch(self, address: str) -> None:
        """The server itself is another than before: think again of what it holds."""
        self._changed.update(self._by_address.get(address, ()))

    def drop(self, address: str) -> None:
        """The server is gone."""
        self.put(address, ())
        del self._by_address[address]

    def view(
        self,
        pending: Mapping[Place, tuple[Action, ...]],
        failures: Mapping[Place, Failure],
        pushes: Mapping[Place, AclPush],
    ) -> Mapping[str, SeenModel]:
        """What is known of every model, with what is under way and what went wrong."""
        busy = by_model({}, pending, failures, pushes)
        for model_id in self._changed | self._busy | busy.keys():
            held = self._held.get(model_id)
            model = busy.get(model_id) or SeenModel()
            if held:
                model.held.update(held)
            elif model_id in self._held:
                del self._held[model_id]
            if held or model_id in busy:
                self._models[model_id] = model
            else:
                self._models.pop(model_id, None)
        self._changed, self._busy = set(), set(busy)
        return dict(self._models)


def _differ(one: ServableInfo, other: ServableInfo) -> bool:
    """All but how busy the servable is."""
    return (
        one.status is not other.status
        or one.version != other.version
        or one.memory != other.memory
        or one.reason != other.reason
        or one.progress != other.progress
        or one.methods != other.methods
        or one.acls != other.acls
    )
