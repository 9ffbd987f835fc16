"""Choose the template for a model: the smallest whose servers would satisfy it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from admin_server.ledger.placement import MODEL_TAG, demand_of, stated_bytes
from admin_server.provisioning.templates import Template
from sax.format import count, human_bytes, listing
from sax.need import Need
from sax.types import ModelSpec


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
