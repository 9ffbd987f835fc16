"""Names, labels and annotations of the objects created in Kubernetes.

A name must leave space for what Kubernetes appends: pods, jobs and hosts are limited to 63
characters.
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
MODELS = "sax.dev/models"  # on a template: patterns of models it is for
MEMORY = "sax.dev/memory"  # on a template: total bytes of all its devices
SET_TAG = "set:"  # plus an object's name: tag of every server in it

LONGEST = 63  # characters of a DNS name or a label value
_HASH_LETTERS = 4


def object_name(template: str, model_id: str, ordinal: int, longest: int) -> str:
    """v5e-4x8-gemma-2b-kqzw-0: cut before the letters that keep models apart."""
    end = f"-{_letters(model_id)}-{ordinal}"
    short = dns_label(ModelId.parse(model_id).model)
    return f"{template}-{short}"[: longest - len(end)].rstrip("-") + end


def dns_label(text: str) -> str:
    """Lower-case letters, digits and inner dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def cell_label(cell: CellId) -> str:
    """The cell's name as a label value; too long a name is cut and gets a hash."""
    name = cell.cell.strip("-_")
    if name == cell.cell and len(name) <= LONGEST:
        return name
    return f"{name[:48].rstrip('-_')}.{_digest(str(cell))[:12]}"


def cell_labels(cell: CellId) -> dict[str, str]:
    """Labels of every object of this cell, and of no other."""
    return {MANAGED_BY: OURS, CELL: cell_label(cell)}


def content_hash(text: str) -> str:
    return _digest(text)[:12]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _letters(text: str) -> str:
    number, letters = int(_digest(text), 16), ""
    for _ in range(_HASH_LETTERS):
        number, letter = divmod(number, 26)
        letters += chr(ord("a") + letter)
    return letters
