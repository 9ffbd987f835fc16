"""The provisioner: a loop that requests missing model servers from Kubernetes and releases them.

Looks at the cluster every few seconds and when a plan is short of servers, carries out decisions,
and keeps notes for waiting replicas. Right before each change it verifies that this admin server
still leads and that the change is still right.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from admin_server.assignment.plan import CellActions, Outlook
from admin_server.events import CellEvents
from admin_server.ledger.state import CellState
from admin_server.provisioning.cluster import Cluster, ClusterRefused, ClusterTrouble, NameTaken
from admin_server.provisioning.decision import (
    Create,
    Decision,
    Delete,
    Setback,
    Setbacks,
    Situation,
    decide,
)
from admin_server.provisioning.object_names import SET_TAG
from admin_server.provisioning.present import Present, look, read_present
from admin_server.provisioning.sets import servers_of_sets
from admin_server.provisioning.templates import TemplateFolder, object_for
from sax.errors import Unavailable
from sax.names import CellId

_log = logging.getLogger(__name__)

# Delay actions until they have been right for a while, so that a brief absence rents no machines.
#
# Tracks since when each action has been decided on.

_Key = tuple[str, str]


class Steadiness:
    def __init__(self, create_s: float, delete_s: float) -> None:
        self._create_s = create_s
        self._delete_s = delete_s
        self._due_at_s: dict[_Key, float] = {}

    def due(self, actions: Iterable[Create | Delete], now: float) -> list[Create | Delete]:
        """Actions decided on in every round for long enough."""
        actions = list(actions)
        self._due_at_s = {
            _key(action): self._due_at_s.get(_key(action), now + self._wait_s(action))
            for action in actions
        }
        return [action for action in actions if self._due_at_s[_key(action)] <= now]

    def next_due_s(self, now: float) -> float:
        """Seconds until the next action falls due; infinite if none is waiting."""
        return min((at for at in self._due_at_s.values() if at > now), default=math.inf) - now

    def _wait_s(self, action: Create | Delete) -> float:
        return self._create_s if isinstance(action, Create) else self._delete_s


def _key(action: Create | Delete) -> _Key:
    if isinstance(action, Create):
        return "create", action.name
    return "delete", action.present.uid


_KEPT = 1000  # the latest; servers of older ones have long fallen silent


class RetiredObjects:
    """Objects that are gone or going: their servers, while they still answer, are no candidates."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}  # oldest first

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._names)

    @property
    def tags(self) -> frozenset[str]:
        """One of these is among the tags of each server of a retired object."""
        return frozenset(f"{SET_TAG}{name}" for name in self._names)

    def add(self, name: str) -> None:
        self._names.pop(name, None)
        self._names[name] = None
        if len(self._names) > _KEPT:
            del self._names[next(iter(self._names))]

    def discard(self, names: Iterable[str]) -> None:
        """Objects of these names are there."""
        for name in names:
            self._names.pop(name, None)


_LONGEST_PAUSE_S = 60.0
_NOTHING = Decision((), {}, frozenset(), frozenset())


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisioningTiming:
    """Intervals of the loop, in seconds."""

    poll_s: float = 5.0  # between two looks at the cluster
    gap_s: float = 0.5  # minimum pause, however much there is to do
    create_s: float = 1.0  # how long an object must be missing
    delete_s: float = 10.0  # how long an object must be useless
    lost_s: float = 30.0  # grace for a silent server to come back
    retry_s: float = 5.0  # before the first retry; doubles each time
    settle_s: float = 15.0  # grace after a start, for servers to find the new admin


class Provisioner:
    """Lives on the event loop."""

    def __init__(
        self,
        cell: CellId,
        cluster: Cluster,
        folder: TemplateFolder,
        outlook: Callable[[], Outlook],
        leads: Callable[[], Awaitable[bool]],
        retire: Callable[[frozenset[str]], None],
        clock: Callable[[], float],
        *,
        limit: int,
        events: CellEvents,
        timing: ProvisioningTiming | None = None,
        jitter: random.Random | None = None,
    ) -> None:
        """`leads` checks in the store whether this server still leads; raises Unavailable.

        `retire` is told the tags of servers whose machines are gone, all of them each time.
        """
        self._cell = cell
        self._cluster = cluster
        self._folder = folder
        self._outlook = outlook
        self._leads = leads
        self._retire = retire
        self._clock = clock
        self._limit = limit
        self._events = events
        self._timing = timing or ProvisioningTiming()
        self._setbacks = Setbacks(jitter or random.Random(), self._timing.retry_s)
        self._steadiness = Steadiness(self._timing.create_s, self._timing.delete_s)
        self._settled_at_s = clock() + self._timing.settle_s
        # A cell without models has no servers to wait for.
        self._creates_at_s = self._settled_at_s if outlook().state.models else clock()
        self._stir = asyncio.Event()
        self._present: dict[str, Present] = {}  # by uid
        self._looked = False
        self._failed: set[str] = set()  # by uid: failures already reported
        self._served: set[str] = set()  # by uid: those that a server has served from
        self._taken: set[str] = set()
        self._retired = RetiredObjects()
        self._too_small: dict[str, tuple[str, frozenset[str]]] = {}  # by model: version, templates
        self._decision, self._decided_by = _NOTHING, CellActions((), {})
        self._heard = CellActions((), {})
        self._lost_at_s: dict[str, float] = {}  # by model: when a replica was last lost
        self.trouble = ""  # why the cluster is unavailable now
        self.failures = 0  # since the start

    # Interface

    def hear(self, plan: CellActions) -> None:
        lost = {m: at for m, at in self._lost_at_s.items() if m in plan.short}
        for model_id in plan.short:
            if _placed(self._heard, model_id) > _placed(plan, model_id):
                lost[model_id] = self._clock()
        if plan.short != self._heard.short:
            self._stir.set()
        self._lost_at_s, self._heard = lost, plan

    def notes(self, model_id: str) -> Sequence[str]:
        """Notes for replicas without a server, one each."""
        notes = list(self._decide().notes.get(model_id, ()))
        for trouble in filter(None, (self.trouble, self._folder.trouble)):
            notes = [f"{note}; {trouble}" for note in notes or ["machines cannot be requested"]]
        return notes

    def is_coming(self, model_id: str) -> bool:
        """True if machines for the model are on their way, as far as is known."""
        if not self._looked and not self.trouble:
            return True
        decision = self._decide()
        return model_id in (decision.there if self.trouble else decision.coming)

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((present.model_id, present.state) for present in self._present.values())

    # The loop

    async def run(self) -> None:
        """Run until cancelled, or until this admin server no longer leads."""
        pause, leads = self._timing.poll_s, True
        while leads:
            self._stir.clear()
            try:
                leads = await self._round()
                self._tell_trouble("")
                pause = self._timing.poll_s
            except (ClusterTrouble, Unavailable) as exc:
                self._tell_trouble(exc.text)
            except Exception as exc:  # a bad answer from the cluster must not end the loop
                _log.exception("reading the cluster failed")
                self._tell_trouble(f"Kubernetes gave an invalid answer: {exc!r}")
            if self.trouble:
                self.failures += 1
                pause = min(_LONGEST_PAUSE_S, 2 * pause)
            await asyncio.sleep(self._timing.gap_s)
            await self._wait(pause)

    async def _wait(self, seconds: float) -> None:
        """Wait for a change, the next due action, or at most `seconds`."""
        if self.trouble:  # do not hurry an unresponsive cluster
            return await asyncio.sleep(seconds)
        due_s = self._steadiness.next_due_s(self._clock())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(seconds, due_s)):
                await self._stir.wait()

    async def _round(self) -> bool:
        """Look once and act; False if this admin server no longer leads."""
        if self._folder.refresh() and not self._folder.trouble:
            _log.info("reloaded the templates of model servers")
        kinds = {template.kind for template in self._folder.templates}
        kinds |= {present.kind for present in self._present.values()}
        self._take(await look(self._cluster, self._cell, kinds))
        decision = self._decide(anew=True)
        for action in self._steadiness.due(decision.actions, self._clock()):
            if not await self._leads():
                return False
            if action in self._decide(anew=True).actions:
                await self._carry_out(action)
        return True

    def _take(self, found: Sequence[Present]) -> None:
        """Record what became of the objects since the last look."""
        before = self._present
        self._present = {present.uid: present for present in found}
        models = self._outlook().state.models
        self._setbacks.keep(models)
        for uid, present in before.items():
            now = self._present.get(uid)
            if now is None or now.leaving:
                self._retired.add(present.name)
            if not present.leaving and (now is None or now.leaving):
                self._set_back(present.model_id, f"{present.title} was deleted by someone else")
        self._failed &= self._present.keys()
        self._served &= {uid for uid, present in self._present.items() if not present.failure}
        for present in found:
            if present.failure and present.uid not in self._failed and not present.leaving:
                self._failed.add(present.uid)
                self._set_back(
                    present.model_id, f"{present.title} will not start: {present.failure}"
                )
        self._retired.discard(present.name for present in found if not present.leaving)
        self._retire(self._retired.tags)
        self._looked = True

    def _decide(self, *, anew: bool = False) -> Decision:
        """Decide by the last look at the cluster and the newest plan."""
        outlook = self._outlook()
        if anew or outlook.plan is not self._decided_by:
            self._decided_by = outlook.plan
            self._decision = decide(self._situation(outlook))
        return self._decision

    def _situation(self, outlook: Outlook) -> Situation:
        state, plan, seen = outlook.state, outlook.plan, outlook.seen
        sets, now = servers_of_sets(state, plan, seen), self._clock()
        for present in self._present.values():
            if (servers := sets.get(present.name)) is not None and servers.serves:
                self._note_serving(present)
        needs = {
            m: need for m in plan.short if (s := state.models.get(m)) and (need := seen.need(s))
        }
        return Situation(
            models=state.models,
            planned=plan.models.keys(),
            short=plan.short,
            present=list(self._present.values()),
            sets=sets,
            templates=self._folder.templates,
            limit=self._limit,
            now=now,
            needs=needs,
            too_small=self._known_too_small(state),
            setbacks={**self._losses(now), **self._setbacks.all()},
            taken=self._taken | self._retired.names,
            may_create=self._looked and now >= self._creates_at_s,
            may_delete=self._looked and now >= self._settled_at_s,
        )

    def _note_serving(self, present: Present) -> None:
        """Heal when an object serves for the first time; one that did before proves nothing."""
        if present.uid not in self._served and not present.failure:
            self._served.add(present.uid)
            self._setbacks.heal(present.model_id)

    def _losses(self, now: float) -> dict[str, Setback]:
        """Models whose server just left: a restart or a network pause must not rent machines."""
        why = "its server shut down or fell silent and may come back"
        return {
            model_id: Setback(0, why, at_s + self._timing.lost_s)
            for model_id, at_s in self._lost_at_s.items()
            if now < at_s + self._timing.lost_s
        }

    def _known_too_small(self, state: CellState) -> dict[str, frozenset[str]]:
        return {
            model_id: templates
            for model_id, (version, templates) in self._too_small.items()
            if model_id in state.models and state.models[model_id].version == version
        }

    # Actions

    async def _carry_out(self, action: Create | Delete) -> None:
        try:
            await (self._create(action) if isinstance(action, Create) else self._delete(action))
        except NameTaken as exc:
            _log.warning("%s", exc.text)
            if isinstance(action, Create):
                self._taken.add(action.name)
        except ClusterRefused as exc:
            self.failures += 1
            self._set_back(action.model_id, exc.text)

    async def _create(self, create: Create) -> None:
        body = object_for(create.template, create.model_id, create.name, self._cell)
        made = await self._cluster.create(create.template.kind, body)
        present = read_present(create.template.kind, made, self._cell)
        if present is not None:
            self._present[present.uid] = present
        title = f"{create.template.kind.kind} {create.name}"
        self._happen("asked-for", f"{title} was created", create.model_id)

    async def _delete(self, delete: Delete) -> None:
        present = delete.present
        if delete.outgrown:
            self._note_too_small(present)
        await self._cluster.delete(present.kind, present.name, present.uid)
        self._present[present.uid] = replace(present, leaving=True)
        self._retired.add(present.name)
        self._retire(self._retired.tags)
        self._happen("given-back", f"{present.title} was deleted: {delete.why}", present.model_id)

    def _note_too_small(self, present: Present) -> None:
        model_id = present.model_id
        spec = self._outlook().state.models.get(model_id)
        if spec is not None:
            version, known = self._too_small.get(model_id, ("", frozenset[str]()))
            known = known if version == spec.version else frozenset[str]()
            self._too_small[model_id] = (spec.version, known | {present.template})

    def _set_back(self, model_id: str, reason: str) -> None:
        self._setbacks.note(model_id, reason, self._clock())
        _log.warning("%s", reason)
        self._events.note("kubernetes-failed", reason, model_id=model_id)

    def _happen(self, kind: str, text: str, model_id: str) -> None:
        _log.info("%s", text)
        self._events.note(kind, text, model_id=model_id)

    def _tell_trouble(self, text: str) -> None:
        if text and not self.trouble:
            _log.error("%s", text)
            self._events.note("kubernetes-failed", text)
        elif self.trouble and not text:
            _log.info("Kubernetes answers again")
        self.trouble = text


def _placed(plan: CellActions, model_id: str) -> int:
    report = plan.models.get(model_id)
    return sum(bool(replica.address) for replica in report.replicas) if report is not None else 0
