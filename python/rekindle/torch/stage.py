"""A stage: a block of the model, and the ways to run it."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional

import torch
from torch import nn

from .buffers import Buffers

Way = Callable[..., Any]


class Stage:
    """A block, as a region runs it. Numbered from 1, as in plans."""

    __slots__ = ("number", "name", "block", "buffers", "ways", "taped", "untaped", "homes", "looked_for_captures")

    def __init__(self, number: int, name: str, block: nn.Module):
        self.number, self.name, self.block = number, name, block
        self.buffers = Buffers(block)
        # Under an option the block is run by something else, such as a compiled copy of its code.
        self.ways: Dict[str, Way] = {}
        # How it runs when all of its tape is kept.
        self.taped: Way = block
        # How it runs when nobody keeps its tape; the block itself unless an option has a faster way.
        self.untaped: Way = block
        # Dictionaries rather than parameters: one that is replaced is seen at the next step.
        self.homes = [module._parameters for module in block.modules() if module._parameters]
        self.looked_for_captures = False

    def parameters(self) -> List[nn.Parameter]:
        """All of them, each once."""
        found = [parameter for home in self.homes for parameter in home.values() if parameter is not None]
        if len({id(parameter) for parameter in found}) == len(found):
            return found
        return list({id(parameter): parameter for parameter in found}.values())

    def way(self, option: Optional[str]) -> Optional[Way]:
        """What runs the block under an option; ``None`` when it has no such option."""
        return self.taped if option is None else self.ways.get(option)

    def may_be_filled(self) -> bool:
        """Whether its graph can be left without values that a second run fills in. Compiled code does not stop half-way, and a
        block with a region in it keeps values that no graph knows of."""
        from .region import Region

        inner = any(isinstance(module, Region) for module in self.block.modules())
        return self.untaped is self.block and not inner

    def devices(self) -> List[torch.device]:
        """Where its parameters and buffers lie."""
        return sorted({tensor.device for tensor in (*self.parameters(), *self.block.buffers())}, key=str)
