"""Plays the life of a cell as it is told in a text, with the real planner and bookkeeping.

A story is lines. `#` is for the reader. A line that begins at the margin is a step; the indented
lines below it are what then happens: what the admin server does, in order, and how the models
stand, as far as that is news. Half a second passes at a time until nothing moves any more.

    join SERVER [paths:a,b] [memory:GiB] [tags:x,y] [devices:N] [topology:4x8]
                [lean:GiB]   by its flags, models need so much less there
    publish MODEL [replicas:N] [path:P] [tags:x,y] [devices:N] [memory:GiB] [override:KEY=JSON]
    update MODEL ...the same, [checkpoint:C] [acl:METHOD=ACL]; what is not named stays
    rollback MODEL, unpublish MODEL
    canary MODEL percent:N [checkpoint:C]   starts one, or gives it another share
    promote MODEL, abort MODEL
    needs MODEL [devices:N] memory:GiB weights:GiB
                          servers that have less refuse it and say so; without figures, none does
    size MODEL GiB        what servers will tell that it takes
    fail SERVER MODEL WHY...   its loads fail there; `heal SERVER MODEL` ends that
    refuse SERVER WHY...  it takes no access control lists; `accept SERVER` ends that
    lose SERVER           it is not heard of any more; `restart SERVER` is a new start of it
    takeover              another admin server leads: it knows the servers, none has answered it
    answer SERVER...      these, or all, answer GetStatus again
    wait SECONDS
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from admin_server.assignment.plan import CellActions, plan_actions
from admin_server.assignment.seen import Action, LoadAction, UnloadAction, UpdateAcls
from admin_server.assignment.servers import Servers
from admin_server.ledger.state import CellState
from sax.canary import canary_spec, replicas_with_canary
from sax.format import human_bytes
from sax.need import Need
from sax.types import (
    Canary,
    ModelSpec,
    Placement,
    ServableInfo,
    ServableStatus,
    ServerInfo,
    ServerStatus,
)

_TICK_S = 0.5
_LONGEST_TICKS = 400
_GIB = 2**30
_PREFIX = "/sax/test/"
_DEFAULT = ModelSpec(model_id="", model_path="llama", checkpoint="1", replicas=1)
_MEMORY = (ServableStatus.LOADED, ServableStatus.LOADING)


@dataclass
class FakeServer:
    """Holds what it is told to; each load and unload takes one tick."""

    info: ServerInfo
    answers: bool = True
    models: dict[str, ServableInfo] = field(default_factory=dict)
    work: list[Action] = field(default_factory=list)
    failing: dict[str, str] = field(default_factory=dict)  # by model, why loads fail
    refusing: str = ""  # why access control lists are not taken
    starts: int = 1
    lean: int = 0  # bytes that models need less than elsewhere


class Player:
    """The cell of one story."""

    def __init__(self) -> None:
        self.now = 0.0
        self.wanted = CellState("/sax/test")
        self.fleet: dict[str, FakeServer] = {}
        self.servers = Servers(silence_s=10, jitter=random.Random(0))
        self.sizes: dict[str, int] = {}
        self.needs: dict[str, Need] = {}
        self.before: dict[str, ModelSpec] = {}  # by model, the spec before the last reload
        self.versions = 0
        self.done: list[Action] = []  # since it was last told
        self.told: dict[str, list[str]] = {}  # by model, how it stood when that was last told

    def play(self, step: str) -> list[str]:
        """What happens after the step, until nothing moves any more."""
        verb, *words = step.split()
        getattr(self, f"_{verb}")(*words)
        for _ in range(_LONGEST_TICKS):
            plan = self._tick()
            if not plan.actions and not any(fake.work for fake in self.fleet.values()):
                lines = [*map(_describe, self.done), *self._news(plan)]
                self.done = []
                return [line.replace(_PREFIX, "") for line in lines]
        raise AssertionError(f"after {step!r} the cell never comes to rest")

    # The steps

    def _join(self, name: str, *options: str) -> None:
        told = _options(options)
        info = ServerInfo(
            address=name,
            model_paths=tuple(told.get("paths", "llama").split(",")),
            tags=tuple(told["tags"].split(",")) if "tags" in told else (),
            memory_total=int(told.get("memory", 0)) * _GIB,
            devices=int(told.get("devices", 0)),
            chip_topology=told.get("topology", "unknown"),
            incarnation=f"{name} start 1",
        )
        self.fleet[name] = FakeServer(info, lean=int(told.get("lean", 0)) * _GIB)
        self.servers.join(info, self.now)

    def _publish(self, name: str, *options: str) -> None:
        self._want(replace(_DEFAULT, model_id=_PREFIX + name), options)

    def _update(self, name: str, *options: str) -> None:
        self._want(self.wanted.models[_PREFIX + name], options)

    def _rollback(self, name: str) -> None:
        self._put(self.before[name])

    def _canary(self, name: str, *options: str) -> None:
        told, old = _options(options), self.wanted.models[_PREFIX + name]
        percent = float(told["percent"])
        if old.canary is not None:
            return self._put(replace(old, canary=replace(old.canary, percent=percent)))
        self.versions += 1
        version = f"{self.versions:032x}"
        canary = Canary(version=version, checkpoint=told["checkpoint"], percent=percent)
        self._put(replace(old, canary=canary))

    def _promote(self, name: str) -> None:
        old = self.wanted.models[_PREFIX + name]
        assert old.canary is not None
        self._put(canary_spec(old, old.canary))

    def _abort(self, name: str) -> None:
        old = self.wanted.models[_PREFIX + name]
        assert old.canary is not None
        self._put(replace(old, canary=None, aborted=old.canary.version))

    def _unpublish(self, name: str) -> None:
        models = dict(self.wanted.models)
        del models[_PREFIX + name]
        self.told.pop(_PREFIX + name, None)
        self.wanted = CellState("/sax/test", models)

    def _needs(self, name: str, *options: str) -> None:
        told = {key: int(text) for key, text in _options(options).items()}
        if not told:
            del self.needs[_PREFIX + name]
            return
        self.needs[_PREFIX + name] = Need(
            devices=told.get("devices", 0),
            memory=told["memory"] * _GIB,
            weights=told["weights"] * _GIB,
        )

    def _size(self, name: str, gib: str) -> None:
        self.sizes[_PREFIX + name] = int(gib) * _GIB

    def _fail(self, server: str, model: str, *why: str) -> None:
        self.fleet[server].failing[_PREFIX + model] = " ".join(why)

    def _heal(self, server: str, model: str) -> None:
        del self.fleet[server].failing[_PREFIX + model]

    def _refuse(self, server: str, *why: str) -> None:
        self.fleet[server].refusing = " ".join(why)

    def _accept(self, server: str) -> None:
        self.fleet[server].refusing = ""

    def _lose(self, server: str) -> None:
        self.fleet[server].answers = False
        self._wait("10")

    def _restart(self, server: str) -> None:
        fake = self.fleet[server]
        info = replace(fake.info, incarnation=f"{server} start {fake.starts + 1}")
        self.fleet[server] = replace(
            fake, info=info, answers=True, models={}, work=[], starts=fake.starts + 1
        )
        self.servers.join(info, self.now)

    def _takeover(self) -> None:
        infos = self.servers.infos()
        self.servers = Servers(silence_s=10, jitter=random.Random(0))
        self.servers.restore(infos, self.wanted.models, self.now)
        for fake in self.fleet.values():
            fake.answers = False

    def _answer(self, *servers: str) -> None:
        for name in servers or self.fleet:
            self.fleet[name].answers = True

    def _wait(self, seconds: str) -> None:
        for _ in range(int(float(seconds) / _TICK_S)):
            self._tick()

    def _want(self, spec: ModelSpec, options: tuple[str, ...]) -> None:
        told = _options(options)
        old = spec.placement
        overrides = dict(spec.overrides)
        if "override" in told:
            key, _, text = told["override"].partition("=")
            overrides[key] = text
        acls = dict(spec.acls)
        if "acl" in told:
            method, _, acl = told["acl"].partition("=")
            acls[method] = acl
        new = replace(
            spec,
            model_path=told.get("path", spec.model_path),
            checkpoint=told.get("checkpoint", spec.checkpoint),
            replicas=int(told.get("replicas", spec.replicas)),
            overrides=overrides,
            acls=acls,
            placement=Placement(
                tags=tuple(told["tags"].split(",")) if "tags" in told else old.tags,
                devices=int(told.get("devices", old.devices)),
                memory=int(told["memory"]) * _GIB if "memory" in told else old.memory,
            ),
        )
        if not spec.version or new.checkpoint != spec.checkpoint:
            self.versions += 1
            self.before[new.model_id.removeprefix(_PREFIX)] = spec
            new = replace(new, version=f"{self.versions:032x}")
        self._put(new)

    def _put(self, spec: ModelSpec) -> None:
        self.wanted = CellState("/sax/test", {**self.wanted.models, spec.model_id: spec})

    # How time passes

    def _tick(self) -> CellActions:
        self.now += _TICK_S
        for fake in self.fleet.values():
            self._work(fake)
        for name, fake in self.fleet.items():
            if fake.answers and name in self.servers:
                self.servers.saw(name, _status(fake), self.now, self.now)
            elif name in self.servers:
                self.servers.missed(name, "it does not answer")
        self.servers.prune(self.now)
        self.servers.forget_failures(self.wanted)
        plan = plan_actions(self.wanted, self.servers.view(), self.now)
        for action in plan.actions:
            self.servers.begin(action)
            self._begin(self.fleet[action.address], action)
        self.done += plan.actions
        self._check_memory()
        return plan

    def _check_memory(self) -> None:
        """No server ever holds more than it has."""
        for fake in self.fleet.values():
            # What a server refuses it never held.
            held = [m for m in fake.models.values() if m.memory or m.model_id not in self.needs]
            used = sum(self.sizes.get(model.model_id, 0) for model in held)
            assert not fake.info.memory_total or used <= fake.info.memory_total

    def _begin(self, fake: FakeServer, action: Action) -> None:
        fake.work.append(action)
        if isinstance(action, LoadAction):
            fake.models[action.model_id] = ServableInfo(
                model_id=action.model_id,
                status=ServableStatus.LOADING,
                version=action.spec.version,
                acls=action.spec.acls,
            )

    def _work(self, fake: FakeServer) -> None:
        work, fake.work = fake.work, []
        for action in work:
            error = self._end(fake, action) if fake.answers else "it does not answer"
            held = fake.models.get(action.model_id)
            need = held.need if held is not None and fake.answers else None
            self.servers.finish(action, error, self.now - _TICK_S / 2, need)

    def _end(self, fake: FakeServer, action: Action) -> str | None:
        held = fake.models.get(action.model_id)
        if isinstance(action, UnloadAction):
            fake.models.pop(action.model_id, None)
            return None
        if held is None:
            return "it was unloaded while it was loading"
        if isinstance(action, UpdateAcls):
            if not fake.refusing:
                fake.models[action.model_id] = replace(held, acls=action.spec.acls)
            return fake.refusing or None
        if (need := self._lacks(fake, action.model_id)) is not None:
            why = f"the plan needs {human_bytes(need.memory, 1)}"
            fake.models[action.model_id] = replace(
                held, status=ServableStatus.FAILED, reason=why, need=need
            )
            return why
        why, size = self._why_not(fake, action), self.sizes.get(action.model_id, 0)
        loaded = replace(held, status=ServableStatus.LOADED, memory=size)
        failed = replace(held, status=ServableStatus.FAILED, reason=why or "")
        fake.models[action.model_id] = failed if why else loaded
        return why

    def _lacks(self, fake: FakeServer, model_id: str) -> Need | None:
        """What the server would have to have for the model, if it has not."""
        if (need := self.needs.get(model_id)) is None:
            return None
        need = replace(need, memory=need.memory - fake.lean)
        used = sum(held.memory for held in fake.models.values() if held.status in _MEMORY)
        enough = need.memory <= fake.info.memory_total - used
        return None if enough and need.devices <= fake.info.devices else need

    def _why_not(self, fake: FakeServer, load: LoadAction) -> str | None:
        """As a real server would: it plans its memory before it loads."""
        if load.model_id in fake.failing:
            return fake.failing[load.model_id]
        used = sum(held.memory for held in fake.models.values() if held.status in _MEMORY)
        free, size = fake.info.memory_total - used, self.sizes.get(load.model_id, 0)
        if fake.info.memory_total and size > free:
            return f"the plan needs {human_bytes(size, 1)}, and {human_bytes(free, 1)} are free"
        return None

    # What is told

    def _news(self, plan: CellActions) -> list[str]:
        news: list[str] = []
        for model_id, report in plan.models.items():
            spec = self.wanted.models[model_id]
            wanted = replicas_with_canary(spec.replicas, spec.canary)
            lines = [f"{model_id}: {report.current} of {wanted} ready"]
            ready = [r.address for r in report.replicas if _is_ready(r.status) and not r.reason]
            if ready:
                lines[0] += f", on {', '.join(ready)}"
            if report.canary is not None:
                at = ", ".join(sorted(report.canary.addresses))
                lines += [f"    canary: {report.canary.percent:g} % of the requests, on {at}"]
            for replica in report.replicas:
                where = f"{replica.address} {replica.status}" if replica.address else "nowhere"
                lines += [f"    {where}: {replica.reason}"] if replica.reason else []
            if self.told.get(model_id) != lines:
                news += lines
                self.told[model_id] = lines
        return news


def tell(text: str) -> str:
    """The story again, with what happens now below each of its steps."""
    player = Player()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {outcome}" for outcome in player.play(line)]
    return "\n".join(lines) + "\n"


def _options(words: tuple[str, ...]) -> dict[str, str]:
    pairs = [word.partition(":") for word in words]
    return {key: value for key, _, value in pairs}


def _status(fake: FakeServer) -> ServerStatus:
    return ServerStatus(tuple(fake.models.values()), fake.info.incarnation, fake.info.memory_total)


def _describe(action: Action) -> str:
    if isinstance(action, LoadAction):
        return f"load {action.model_id} on {action.address}"
    if isinstance(action, UnloadAction):
        return f"unload {action.model_id} from {action.address}: {action.why}"
    return f"send the ACLs of {action.model_id} to {action.address}"


def _is_ready(status: ServableStatus) -> bool:
    return status is ServableStatus.LOADED
