"""What a block writes down for itself, such as BatchNorm's running statistics, is written once.

A stage that is run again runs with copies of such buffers in their places, which are thrown away afterwards. The buffers
themselves are not touched, so that no other part of the graph sees them change.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

Owner = Tuple[Dict[str, Any], str]

try:
    from torch.utils._python_dispatch import _disable_current_modes as _without_modes  # type: ignore[attr-defined]
except ImportError:
    # PyTorch 1.13, which has no selective contexts either.
    _without_modes = contextlib.nullcontext


class Buffers:
    """The buffers of a block that its forward changes."""

    __slots__ = ("norms", "others", "changing", "looked")

    def __init__(self, block: nn.Module):
        self.norms: List[_NormBase] = []
        self.others: List[Owner] = []
        for module in block.modules():
            if isinstance(module, _NormBase):
                self.norms.append(module)
            else:
                self.others.extend((module._buffers, name) for name, buffer in module._buffers.items() if buffer is not None)
        # Which of the others change is seen when the block runs: their version counts. BatchNorm's does not.
        self.changing: List[Owner] = []
        self.looked = not self.others

    def before_first_run(self) -> Optional[List[Any]]:
        """What a second run has to start from."""
        if self.looked and not self.changing:
            return None
        owners = self.changing if self.looked else self.others
        return [(owner, owner[0][owner[1]]._version, owner[0][owner[1]].clone()) for owner in owners]

    def after_first_run(self, before: Optional[List[Any]]) -> Optional[List[Tuple[Owner, torch.Tensor]]]:
        if before is None:
            return None
        changed = [(owner, copy) for owner, version, copy in before if owner[0][owner[1]]._version != version]
        if not self.looked:
            self.looked = True
            self.changing = [owner for owner, _ in changed]
        return changed or None

    def look(self) -> "Look":
        """A context in which a run leaves no trace, and after which it is known what such a run changes."""
        return Look(self)

    def stand_in(self, start: Optional[List[Tuple[Owner, torch.Tensor]]]) -> "StandIn":
        """A context in which a run leaves no trace."""
        owners: List[Tuple[Owner, torch.Tensor]] = []
        for norm in self.norms:
            if norm.training and norm.track_running_stats:
                named = norm._buffers
                owners.extend(((named, name), buffer) for name, buffer in named.items() if buffer is not None)
        owners.extend(start or ())
        return StandIn(owners)


class StandIn:
    """Within it, copies stand in the places of buffers."""

    __slots__ = ("owners", "own")

    def __init__(self, owners: List[Tuple[Owner, torch.Tensor]]):
        self.owners = owners
        self.own: List[Optional[torch.Tensor]] = []

    def __enter__(self) -> None:
        self.own = [named[name] for (named, name), _ in self.owners]
        # Selective contexts of PyTorch expect of a second run what the first one did, and no copies.
        with _without_modes() if self.owners else contextlib.nullcontext():
            for (named, name), start in self.owners:
                named[name] = start.clone()

    def __exit__(self, *_: object) -> None:
        for ((named, name), _), own in zip(self.owners, self.own):
            named[name] = own


class Look(StandIn):
    """Copies stand in the places of all buffers."""

    __slots__ = ("buffers",)

    def __init__(self, buffers: Buffers):
        super().__init__(buffers.stand_in(None).owners + [(owner, owner[0][owner[1]]) for owner in buffers.others])
        self.buffers = buffers

    def __exit__(self, *_: object) -> None:
        # A copy is new: whatever has written to it shows.
        others = set(map(id, self.buffers.others))
        owners = [owner for owner, _ in self.owners]
        self.buffers.changing = [
            owner for owner in owners if id(owner) in others and owner[0][owner[1]]._version > 0
        ]
        self.buffers.looked = True
        super().__exit__()
