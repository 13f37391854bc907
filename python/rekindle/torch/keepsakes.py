"""What stages that are run again keep of their first run in host memory: the results of costly calls.

A boundary that goes to host memory makes room. A *keepsake* saves time: the second run of a stage takes it and does not compute
it again. It goes out while the stages after it run forward, and comes back while they go back, so that it takes no time of
its own and next to no memory of the device. Who keeps what, and when it travels, is arranged beforehand (`arrange`).
"""

from __future__ import annotations

from typing import Any, List, Optional, Set

from .arrange import Arrangement
from .engine import Boundary
from .ghosts import Ghost
from .parcels import Tickets
from .trees import tensor_bytes

#: Smaller pieces stay where they are. However small, they would take 512 bytes each of a budget that may be used up; those without
#: an element take none.
SMALL = 1


class Keepsakes:
    """The keepsakes of one step. The store is one for boundaries, and keeps what is put into it under a number."""

    __slots__ = ("arrangement", "store", "tickets", "small", "_leaving", "_away", "__weakref__")

    def __init__(self, arrangement: Arrangement, store: Any, tickets: Tickets, small: int = SMALL):
        self.arrangement, self.store, self.tickets, self.small = arrangement, store, tickets, small
        self._leaving: Set[int] = set()
        self._away: Set[int] = set()

    def level(self, number: int) -> Optional[str]:
        """What a stage keeps."""
        return self.arrangement.levels.get(number)

    def send(self, number: int, ghost: Ghost) -> None:
        """What a first run has kept leaves. The device's memory is let go of at a later stage."""
        pieces = ghost.pieces.tensors
        large = {position: piece for position, piece in enumerate(pieces) if piece is not None and self._travels(piece)}
        if not large:
            return
        try:
            self.store.put(number, self.tickets.leave(Boundary(list(large.values()), (), [])))
        except MemoryError:
            # No room there: the calls are made again.
            ghost.keep_nothing()
            return
        for position in large:
            pieces[position] = None
        self._leaving.add(number)
        self._away.add(number)

    def _travels(self, piece: Any) -> bool:
        return tensor_bytes(piece) >= self.small

    def reach(self, number: int) -> None:
        """A stage is about to run: what has left by now takes no more memory."""
        if self._leaving:
            for sent in [sent for sent in self._leaving if self.arrangement.released(sent) <= number]:
                self._leave(sent)

    def turn(self, last: int) -> None:
        """The forward half is over: what had to be gone by the end of the last stage is."""
        self.reach(last + 1)

    def settle(self) -> None:
        """The model has returned: everything is gone."""
        for sent in list(self._leaving):
            self._leave(sent)

    def _leave(self, number: int) -> None:
        self._leaving.remove(number)
        self.store.wait(number)

    def go_back(self, number: int) -> None:
        """A stage goes back: what is needed soon begins to come."""
        if self._leaving:
            # Nobody has said that the model returned.
            self.settle()
        for coming in self.arrangement.fetched_at(number):
            if coming in self._away:
                self.store.prefetch(coming)

    def restore(self, number: int, ghost: Ghost) -> None:
        """What a stage has kept is there again."""
        if number not in self._away:
            return
        self._away.remove(number)
        boundary = self.tickets.collect(self.store.take(number))
        self.store.forget(number)
        coming: List[Any] = boundary.tensors
        at = iter(coming)
        pieces = ghost.pieces.tensors
        for position, piece in enumerate(pieces):
            if piece is None:
                pieces[position] = next(at)
