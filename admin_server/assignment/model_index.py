"""Index by model of what servers hold, updated as servers answer.

A model that did not change is the very same object in every view, so the planner can skip it
cheaply. How busy a server is does not count as a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from admin_server.assignment.seen import AclPush, Action, Failure, Place, SeenModel, by_model
from sax.types import ServableInfo, ServableStatus


class ModelIndex:
    def __init__(self) -> None:
        self._by_address: dict[str, dict[str, ServableInfo]] = {}
        self._held: dict[str, dict[str, ServableInfo]] = {}  # same, by model
        self._changed: set[str] = set()  # models changed since the last view
        self._busy: set[str] = set()  # models with actions, failures or pushes in that view
        self._models: dict[str, SeenModel] = {}

    def put(self, address: str, servables: Iterable[ServableInfo]) -> bool:
        """Record what the server holds now; True if a plan may come out differently."""
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
        """The server itself changed: reconsider the models it holds."""
        self._changed.update(self._by_address.get(address, ()))

    def drop(self, address: str) -> None:
        self.put(address, ())
        del self._by_address[address]

    def view(
        self,
        pending: Mapping[Place, tuple[Action, ...]],
        failures: Mapping[Place, Failure],
        pushes: Mapping[Place, AclPush],
    ) -> Mapping[str, SeenModel]:
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
    """Compare everything except how busy the servable is."""
    return (
        one.status is not other.status
        or one.version != other.version
        or one.memory != other.memory
        or one.reason != other.reason
        or one.progress != other.progress
        or one.methods != other.methods
        or one.acls != other.acls
        or one.note != other.note
    )
