"""The parts of `sax plan --json` that manifests need. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sax.errors import MemoryPlanError, Unavailable
from sax.format import human_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan that fits."""

    topology: str  # v5e:4x8
    path: str  # model path; auto: as the checkpoint's config.json says
    hosts: int
    weights: int  # bytes per device
    used: int  # bytes per device, in total
    limit: int  # bytes per device
    devices: int  # of the slice
    kv_tokens: int  # tokens that the page pool holds

    @property
    def weights_of_slice(self) -> int:
        """Bytes of weights on all devices; replicated weights count once per device."""
        return self.weights * self.devices

    def __str__(self) -> str:
        return (
            f"{human_bytes(self.weights, 1)} of weights and {human_bytes(self.used, 1)} in all, of "
            f"{human_bytes(self.limit, 1)}, on each of {self.devices} devices; room for "
            f"{self.kv_tokens:,} cached tokens"
        )


def read_plan(text: str) -> Planned:
    """Parse the plan's JSON.

    Raises MemoryPlanError with the plan's message if the model does not fit, Unavailable if the
    text is not a plan.
    """
    try:
        made = json.loads(text)
        fits, where, memory = made["fits"], made["slice"], made["memory"]
        if not fits:
            raise MemoryPlanError(_refusal(made))
        return Planned(
            topology=where["topology"],
            path=made["path"],
            hosts=where["hosts"],
            devices=where["devices"],
            weights=memory["weights"],
            used=memory["used"],
            limit=memory["limit"],
            kv_tokens=memory["kv_tokens"],
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise Unavailable(
            "planning the model failed: see the output above; --no-plan renders without a plan"
        ) from exc


def _refusal(made: dict[str, Any]) -> str:
    advice: list[str] = made.get("advice") or []
    hints = "".join(f"\n  {line}" for line in advice)
    problem = made.get("problem") or f"{made['model']} does not fit {made['slice']['topology']}"
    return f"{problem}\nit would fit with any of these:{hints}" if hints else str(problem)
