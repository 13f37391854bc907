"""Leaves in the places of parameters that have hooks.

From PyTorch 2.0 on, a hook on a parameter runs whenever that parameter's gradient is asked for. A stage asks for it, and
hands it to the outer graph, where the hook runs as well. So a stage that goes back does so to a leaf without hooks, which
has the parameter's memory.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import torch

Home = Dict[str, Any]


class StandIns:
    """For one step: a leaf for each parameter with hooks, the same in all stages."""

    __slots__ = ("leaves",)

    def __init__(self) -> None:
        self.leaves: Dict[int, torch.Tensor] = {}

    def of(self, parameters: List[torch.Tensor]) -> List[torch.Tensor]:
        """What a stage's graph has in the places of these."""
        hooked = [parameter for parameter in parameters if parameter._backward_hooks]
        for parameter in hooked:
            self.leaves.setdefault(id(parameter), parameter.detach().requires_grad_())
        if not hooked:
            return parameters
        return [self.leaves[id(p)] if p._backward_hooks else p for p in parameters]

    def within(self, homes: List[Home]) -> "Within":
        return Within(homes, self.leaves)


class Within:
    """Within it, modules have the leaves in place of their parameters."""

    __slots__ = ("homes", "leaves", "changed")

    def __init__(self, homes: List[Home], leaves: Dict[int, torch.Tensor]):
        self.homes, self.leaves = homes, leaves
        self.changed: List[Tuple[Home, str, Any]] = []

    def __enter__(self) -> None:
        if not self.leaves:
            return
        for home in self.homes:
            for name, parameter in home.items():
                leaf = self.leaves.get(id(parameter))
                if leaf is not None:
                    self.changed.append((home, name, parameter))
        for home, name, parameter in self.changed:
            home[name] = self.leaves[id(parameter)]

    def __exit__(self, *_: object) -> None:
        for home, name, parameter in self.changed:
            home[name] = parameter
