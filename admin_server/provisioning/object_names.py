"""Names, labels and annotations of the objects that an admin server makes in Kubernetes.

A name must leave room for what Kubernetes appends to it: pods, jobs and hosts have 63 letters.
Knows nothing of templates or clusters.
"""

from __future__ import annotations

import hashlib
import re

from sax.names import CellId, ModelId

MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "sax-admin-server"
CELL = "sax.dev/cell"
MODEL = "sax.dev/model"
TEMPLATE = "sax.dev/template"
TEMPLATE_HASH = "sax.dev/template-hash"
DEVICES = "sax.dev/devices"
MODELS = "sax.dev/models"  # on a template: patterns of the models that it is for
MEMORY = "sax.dev/memory"  # on a template: bytes of all its devices together
SET_TAG = "set:"  # and an object's name: of every server in it

LONGEST = 63  # letters of a name in DNS, and of a label's value
_HASH_LETTERS = 4


def object_name(template: str, model_id: str, ordinal: int, longest: int) -> str:
    """v5e-4x8-gemma-2b-kqzw-0: what is cut is before the letters that keep models apart."""
    end = f"-{_letters(model_id)}-{ordinal}"
    short = dns_label(ModelId.parse(model_id).model)
    return f"{template}-{short}"[: longest - len(end)].rstrip("-") + end


def dns_label(text: str) -> str:
    """Lower-case letters, digits and inner dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def cell_label(cell: CellId) -> str:
    """The cell's name as a label may have it; one that is too long is told apart by a hash."""
    name = cell.cell.strip("-_")
    if name == cell.cell and len(name) <= LONGEST:
        return name
    return f"{name[:48].rstrip('-_')}.{_digest(str(cell))[:12]}"


def cell_labels(cell: CellId) -> dict[str, str]:
    """What every object of this cell has, and no other."""
    return {MANAGED_BY: OURS, CELL: cell_label(cell)}


def content_hash(text: str) -> str:
    """Tells templates apart."""
    return _digest(text)[:12]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _letters(text: str) -> str:
    number, letters = int(_digest(text), 16), ""
    for _ in range(_HASH_LETTERS):
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
    return letters
