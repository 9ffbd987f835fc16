"""Decides which Kubernetes objects to create and delete, as one pure function.

An object holds the machines of one replica, for one model alone. One is created for each replica
that no joined server can take and for which none is on its way yet, and deleted once its server
holds nothing and nothing is missing. No state is stored: it is read from the cluster.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as counting

from admin_server.ledger.placement import MODEL_TAG, demand_of, stated_bytes
from admin_server.provisioning.object_names import object_name
from admin_server.provisioning.present import Present
from admin_server.provisioning.sets import NO_SERVERS, SetServers
from admin_server.provisioning.templates import Template
from sax.format import clock_time, count, human_bytes, listing
from sax.need import Need
from sax.types import ModelSpec

_FIRST_RETRY_S = 5.0
_LONGEST_RETRY_S = 600.0


@dataclass(frozen=True, slots=True)
class Setback:
    """The last failure for a model."""

    count: int  # in a row
    reason: str
    next_try_s: float


class Setbacks:
    def __init__(self, jitter: random.Random, first_retry_s: float = _FIRST_RETRY_S) -> None:
        self._jitter = jitter
        self._first_retry_s = first_retry_s
        self._by_model: dict[str, Setback] = {}

    def all(self) -> Mapping[str, Setback]:
        """All that have not recovered."""
        return dict(self._by_model)

    def note(self, model_id: str, reason: str, now: float) -> Setback:
        """Record a failure now: each wait is twice as long as the last."""
        known = self._by_model.get(model_id)
        count = 1 + (known.count if known is not None else 0)
        wait = min(_LONGEST_RETRY_S, self._first_retry_s * 2 ** min(count - 1, 16))
        setback = Setback(count, reason, now + wait * self._jitter.uniform(0.8, 1.2))
        self._by_model[model_id] = setback
        return setback

    def heal(self, model_id: str) -> None:
        self._by_model.pop(model_id, None)

    def keep(self, models: Collection[str]) -> None:
        self._by_model = {m: s for m, s in self._by_model.items() if m in models}


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object for one more replica."""

    model_id: str
    name: str
    template: Template


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object to release its machines."""

    present: Present
    why: str
    outgrown: bool = False  # its template is too small for the model

    @property
    def model_id(self) -> str:
        return self.present.model_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The inputs of a decision."""

    models: Mapping[str, ModelSpec]  # published
    planned: Collection[str]  # those in the last plan
    short: Mapping[str, int]  # replicas that no joined or returning server can take
    present: Sequence[Present]
    sets: Mapping[str, SetServers]  # by the object's name
    templates: Sequence[Template]
    limit: int
    now: float
    needs: Mapping[str, Need] = field(default_factory=dict[str, Need])
    # Templates whose servers lacked the memory for the published version.
    too_small: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    setbacks: Mapping[str, Setback] = field(default_factory=dict[str, Setback])
    taken: Collection[str] = ()  # names taken by objects that are not ours
    may_create: bool = True
    may_delete: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The actions, and by model one note per replica without a server."""

    actions: tuple[Create | Delete, ...]
    notes: Mapping[str, tuple[str, ...]]
    coming: frozenset[str]  # models with an object that exists or is about to
    there: frozenset[str]  # models with an object that exists


@dataclass(slots=True)
class _ModelDecision:
    short: int
    well: list[Present]  # on their way, or useful
    failed: list[Present]
    outgrown: list[Present]  # their servers lack the memory
    deletes: list[Delete] = field(default_factory=list[Delete])
    notes: list[str] = field(default_factory=list[str])
    missing: int = 0
    template: Template | None = None
    delayed: bool = False  # nothing wrong: just not due yet


def decide(situation: Situation) -> Decision:
    """Decide for every model. Deterministic."""
    objects: dict[str, list[Present]] = {}
    for present in situation.present:
        objects.setdefault(present.model_id, []).append(present)
    models = {
        model_id: _decide_model(situation, spec, objects.get(model_id, []))
        for model_id, spec in sorted(situation.models.items())
        if model_id in situation.planned
    }
    creates = _creates(situation, models, objects)
    deletes = [delete for model in models.values() for delete in model.deletes]
    for model_id in sorted(objects.keys() - situation.models.keys()):
        gone = [p for p in _staying(objects[model_id]) if _is_free(situation, p)]
        deletes += [Delete(p, "its model is no longer published") for p in gone]
    delayed = {model_id for model_id, model in models.items() if model.delayed}
    there = frozenset(m for m, model in models.items() if model.short and model.well)
    return Decision(
        (*(deletes if situation.may_delete else ()), *creates),
        {model_id: tuple(model.notes) for model_id, model in models.items() if model.notes},
        there | delayed | {create.model_id for create in creates},
        there,
    )


def _decide_model(
    situation: Situation, spec: ModelSpec, objects: Sequence[Present]
) -> _ModelDecision:
    model = _sort(situation, spec, objects)
    model.deletes += [
        Delete(p, "its server has too little memory for the model", outgrown=True)
        for p in model.outgrown
    ]
    surplus = len(model.well) - model.short
    if surplus > 0:  # first those that never joined, newest first
        free = [p for p in model.well if _is_free(situation, p)]
        going = sorted(free, key=lambda p: _value(situation, p))[:surplus]
        model.deletes += [Delete(p, "no replica needs it any longer") for p in going]
        model.well = [p for p in model.well if p not in going]
    model.notes += [_describe(situation, p) for p in model.well]
    model.missing = max(0, model.short - len(model.well))
    _think_of_failed(situation, spec, model)
    if model.missing:
        _choose(situation, spec, model)
    return model


def _sort(situation: Situation, spec: ModelSpec, objects: Sequence[Present]) -> _ModelDecision:
    """Sort the objects into those that count as replicas, failed ones, and those too small."""
    short = situation.short.get(spec.model_id, 0)
    model = _ModelDecision(short, well=[], failed=[], outgrown=[])
    for present in _staying(objects):
        servers = situation.sets.get(present.name, NO_SERVERS)
        if not _is_free(situation, present):
            if servers.unheard and short and not present.failure:
                model.well.append(present)  # its server has just joined
        elif present.failure:
            model.failed.append(present)
        else:
            lacks_room = short and (
                servers.refused or _is_outgrown(situation, spec.model_id, present, servers)
            )
            (model.outgrown if lacks_room else model.well).append(present)
    return model


def _describe(situation: Situation, present: Present) -> str:
    """The note for the replica the object was created for."""
    servers = situation.sets.get(present.name, NO_SERVERS)
    if not servers.addresses:
        return present.describe(situation.now)
    state = "has just joined" if servers.unheard else "has joined but was not chosen"
    return f"{present.title} exists; its server {', '.join(servers.addresses)} {state}"


def _is_outgrown(
    situation: Situation, model_id: str, present: Present, servers: SetServers
) -> bool:
    """True if its server, idle while a replica has no place, has too few devices."""
    need = situation.needs.get(model_id)
    return bool(servers.addresses and need and 0 < present.devices < need.devices)


def _staying(objects: Sequence[Present]) -> list[Present]:
    return _by_name([present for present in objects if not present.leaving])


def _is_free(situation: Situation, present: Present) -> bool:
    servers = situation.sets.get(present.name, NO_SERVERS)
    return not servers.addresses or servers.idle


def _value(situation: Situation, present: Present) -> tuple[bool, bool, float, str]:
    """Sort key, least valuable first."""
    joined = bool(situation.sets.get(present.name, NO_SERVERS).addresses)
    return (joined, present.ready, -present.made_at_s, present.name)


def _by_name(objects: Sequence[Present]) -> list[Present]:
    return sorted(objects, key=lambda present: present.name)


def _think_of_failed(situation: Situation, spec: ModelSpec, model: _ModelDecision) -> None:
    """Keep failed objects for inspection until their replica's next try, then recreate them."""
    setback = situation.setbacks.get(spec.model_id)
    waits = setback is not None and situation.now < setback.next_try_s
    for number, present in enumerate(model.failed):
        if number >= model.missing:
            model.deletes.append(Delete(present, f"{present.failure}, and it is no longer needed"))
        elif not waits:
            model.deletes.append(Delete(present, f"{present.failure}, and will be replaced"))


def _choose(situation: Situation, spec: ModelSpec, model: _ModelDecision) -> None:
    """Choose a template for the missing replicas, or note why there is none."""
    setback = situation.setbacks.get(spec.model_id)
    if setback is not None and situation.now < setback.next_try_s:
        at = clock_time(setback.next_try_s)
        model.notes += [f"{setback.reason}; try {setback.count + 1} at {at}"] * model.missing
        model.missing, model.delayed = 0, setback.count == 0
        return
    too_small = situation.too_small.get(spec.model_id, frozenset())
    too_small |= {present.template for present in model.outgrown}
    need = situation.needs.get(spec.model_id)
    chosen = choose_template(spec, need, situation.templates, too_small)
    if isinstance(chosen, str):
        model.notes += [chosen] * model.missing
        model.missing = 0
    elif not situation.may_create:
        model.notes += ["this admin server has just become the leader and waits"] * model.missing
        model.missing, model.delayed = 0, True
    else:
        model.template = chosen


def _creates(
    situation: Situation,
    models: Mapping[str, _ModelDecision],
    objects: Mapping[str, Sequence[Present]],
) -> list[Create]:
    """Create as many as the limit allows, for models with the fewest objects first."""
    wanted = sorted(
        (len(objects.get(model_id, ())) + number, model_id)
        for model_id, model in models.items()
        for number in range(model.missing)
    )
    left = max(0, situation.limit - len(situation.present))
    names = {present.name for present in situation.present} | set(situation.taken)
    creates: list[Create] = []
    for _, model_id in wanted[:left]:
        model = models[model_id]
        assert model.template is not None
        name = _free_name(model.template, model_id, names)
        names.add(name)
        creates.append(Create(model_id, name, model.template))
        model.notes.append(f"{model.template.kind.kind} {name} is about to be created")
    for _, model_id in wanted[left:]:
        there = count(len(situation.present), "object")
        models[model_id].notes.append(
            f"no more machines are requested: {there} of this cell "
            f"{'exists' if len(situation.present) == 1 else 'exist'}, and --kubernetes_limit "
            f"is {situation.limit}"
        )
    return creates


def _free_name(template: Template, model_id: str, names: Collection[str]) -> str:
    for ordinal in counting():
        name = object_name(template.name, model_id, ordinal, template.longest)
        if name not in names:
            return name
    raise AssertionError


def choose_template(
    spec: ModelSpec,
    need: Need | None,
    templates: Sequence[Template],
    too_small: Collection[str] = (),
) -> Template | str:
    """The fitting template with the fewest devices, then by name; or text on why none fits.

    `need` is what servers with too little memory reported; servers of the templates in `too_small`
    were among them.
    """
    unfit: dict[str, str] = {}
    for template in sorted(templates, key=lambda each: (each.devices, each.name)):
        why = _why_not(spec, need, template)
        if not why and template.name in too_small:
            why = "had too little memory for it"
        if not why:
            return template
        unfit[template.name] = why
    if not unfit:
        return "there is no template of model servers in the --kubernetes folder"
    reasons = listing([f"{name} {why}" for name, why in unfit.items()])
    return f"no --kubernetes template fits: {reasons}"


def _why_not(spec: ModelSpec, need: Need | None, template: Template) -> str:
    if not template.is_for(spec.model_id):
        return "is for other models"
    demand = demand_of(spec, need)
    have = {*template.tags, f"{MODEL_TAG}{spec.model_id}"}
    if missing := [tag for tag in demand.tags if tag not in have]:
        return f"lacks the tag{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
    if template.devices < demand.devices:
        has = count(template.devices, "device")
        return f"has {has}, but {demand.devices} are needed"
    memory = max(stated_bytes(spec, template.devices) or 0, need.memory if need else 0)
    if template.memory and template.memory < memory:
        return f"has {human_bytes(template.memory, 1)}, but {human_bytes(memory, 1)} are needed"
    return ""
