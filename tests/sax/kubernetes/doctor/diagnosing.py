"""How tests ask for a diagnosis."""

from __future__ import annotations

from sax.kubernetes.doctor.diagnosis import diagnose
from sax.kubernetes.doctor.finding import OK, Finding
from sax.kubernetes.doctor.snapshot import Snapshot, Wanted
from sax.kubernetes.machines import slice_of

NOTHING = Wanted()
TUTORIAL = Wanted(there=slice_of("v5e:4x8"), replicas=2)


def troubles(snapshot: Snapshot, wanted: Wanted = NOTHING) -> list[Finding]:
    """Everything that is not well."""
    return [each for each in diagnose(snapshot, wanted) if each.level != OK]


def only(snapshot: Snapshot, wanted: Wanted = NOTHING) -> Finding:
    """The one trouble there is."""
    (found,) = troubles(snapshot, wanted)
    assert found.remedy, found
    return found
