"""How tests ask for a diagnosis."""

from __future__ import annotations

from k8s.doctor.diagnosis import diagnose
from k8s.doctor.snapshot import ClusterNeeds, Snapshot
from sax.finding import OK, Finding
from sax.slices import slice_of

NOTHING = ClusterNeeds()
TUTORIAL = ClusterNeeds(there=slice_of("v5e:4x8"), replicas=2)


def troubles(snapshot: Snapshot, wanted: ClusterNeeds = NOTHING) -> list[Finding]:
    """Everything that is not well."""
    return [each for each in diagnose(snapshot, wanted) if each.level != OK]


def only(snapshot: Snapshot, wanted: ClusterNeeds = NOTHING) -> Finding:
    """The one trouble there is."""
    (found,) = troubles(snapshot, wanted)
    assert found.remedy, found
    return found
