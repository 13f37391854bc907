"""Several blocks as one stage: what is compiled together is faster together, and costs the CPU less."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

from torch import nn

from .wiring import FIRST, SPREAD


class Group(nn.Module):
    """Blocks in a row, called as one of them is."""

    def __init__(self, blocks: List[nn.Module], wiring: str):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.wiring = wiring
        # Of itself alone: ``train`` would set all of its blocks to what the first one is in.
        self.training = blocks[0].training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.one_by_one(_call, *args, **kwargs)

    def one_by_one(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Each block by ``run(block, ...)``."""
        if self.wiring == SPREAD:
            for block in self.blocks:
                args = run(block, *args, **kwargs)
            return args
        output: Any = None
        for block in self.blocks:
            if args:
                output = run(block, *args, **kwargs)
                args = (self._hand_on(output), *args[1:])
            else:
                # The boundary is given by name: the first keyword.
                output = run(block, **kwargs)
                name = next(iter(kwargs))
                kwargs = {**kwargs, name: self._hand_on(output)}
        return output

    def _hand_on(self, output: Any) -> Any:
        return output[0] if self.wiring == FIRST and isinstance(output, (tuple, list)) else output


def _call(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return block(*args, **kwargs)


def grouped(blocks: List[Tuple[str, nn.Module]], size: int, wiring: str) -> List[Tuple[str, nn.Module]]:
    """The blocks in groups of a size, the last of what is left. Blocks that change their input in place go with the one
    before, which made it."""
    rows: List[List[Tuple[str, nn.Module]]] = []
    for name, block in blocks:
        in_place = getattr(block, "inplace", False) is True and not list(block.children())
        if rows and (in_place or len(rows[-1]) < size):
            rows[-1].append((name, block))
        else:
            rows.append([(name, block)])
    return [
        row[0] if len(row) == 1 else (f"{row[0][0]}-{row[-1][0]}", Group([block for _, block in row], wiring))
        for row in rows
    ]
