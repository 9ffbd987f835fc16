"""Which tests a worker runs together: those of a file, and all that share the cell."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

# Folders here share a cell, one each, but for the last: starting a cell and loading the demo model
# takes longer than most tests of them.
_CELLS = "tests/end_to_end/"
_ALONE = "alone"


def unit_of(nodeid: str) -> str:
    """The file of a test, or the folder of those that share a cell."""
    file = nodeid.split("::", 1)[0]
    folder, deeper, _ = file.removeprefix(_CELLS).partition("/")
    shares = file.startswith(_CELLS) and deeper and folder != _ALONE
    return _CELLS + folder if shares else file


class WorkUnits(LoadFileScheduling):
    """Gives workers whole files, and all files of a cell to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
