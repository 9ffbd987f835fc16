"""Which tests a worker runs together: those of a file, and all that share the cell."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

# Files of tests/end_to_end with smoke tests on the shared cell. In one worker they start one cell
# and load the demo model once, which takes longer than the tests themselves.
ON_THE_CELL = ("answers", "bad_input", "custom_models", "embeddings", "recovery", "tutorial")
_FILES = {f"tests/end_to_end/test_{name}.py" for name in ON_THE_CELL}


def unit_of(nodeid: str) -> str:
    """The file of a test, or the folder of those on the cell."""
    file = nodeid.split("::", 1)[0]
    return "tests/end_to_end" if file in _FILES else file


class WorkUnits(LoadFileScheduling):
    """Gives workers whole files, and the files on the shared cell to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
