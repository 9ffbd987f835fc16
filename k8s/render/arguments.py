"""Arguments of a model server in an order. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from k8s.render.order import Order
from sax.names import ModelId
from sax.slices import TpuSlice


def arguments(
    given: Sequence[str], name: str, order: Order, there: TpuSlice, model_id: ModelId
) -> list[str]:
    """Return the packaged arguments with an order's in them; `name`: of the set they belong to.

    The cell is none of them: every process has it from the ConfigMap, see k8s/control/cell.yaml.
    """
    ours = {
        "--platform_chip": there.platform_chip,
        "--platform_topology": there.size,
        "--slots": order.slots,
        "--max_context": order.max_context,
        "--tags": f"model:{model_id},set:{name}" if order.is_reserved else None,
    }
    flags = dict(_flag(text) for text in given)
    flags |= {flag: str(value) for flag, value in ours.items() if value is not None}
    return [f"{flag}={value}" for flag, value in flags.items()]


def _flag(text: str) -> tuple[str, str]:
    flag, _, value = text.partition("=")
    return flag, value
