"""Arguments whose memory a client's programs reuse, as the programs' metadata tells. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


class Donations:
    """Those of one client's programs."""

    def __init__(self) -> None:
        self._places: dict[int, frozenset[int]] = {}  # of arguments, by program

    def note(self, programs: Iterable[int], response: Any) -> None:
        """Note what an IfrtResponse to a LoadedExecutableMetadataRequest tells."""
        if response.WhichOneof("response") is None:
            return  # refused
        told = response.loaded_executable_metadata_response.donated_input_indices
        for program in programs:
            self._places[program] = frozenset(told.donated_input_indices)

    def forget(self, programs: Iterable[int]) -> None:
        for program in programs:
            self._places.pop(program, None)

    def kept(self, reads: Collection[int]) -> Collection[int]:
        """Return what an execution only reads, of its program and arguments in this order.

        Nothing is known to be, before a client has asked for the program's metadata.
        """
        program, *arguments = reads or (0,)
        donated = self._places.get(program)
        if donated is None:
            return ()
        reused = {each for place, each in enumerate(arguments) if place in donated}
        return {program, *arguments} - reused
