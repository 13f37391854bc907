"""How blocks are called in a row: where each takes the output of the one before, and what else it is given.

A block is called with positional and keyword arguments. One of them, or several, is the boundary: what changes from
block to block. The rest is the same for all of them.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from rekindle.errors import ArgumentError

#: The whole output is the next block's first argument, as in ``nn.Sequential``.
VALUE = "value"
#: The first element of a tuple is the next block's first argument, as in Hugging Face's decoders.
FIRST = "first"
#: A tuple is spread over the next block's positional arguments: ``x, y = block(x, y)``.
SPREAD = "spread"

WIRINGS = (VALUE, FIRST, SPREAD)


class Call:
    """The arguments of a region, without its boundary."""

    __slots__ = ("wiring", "keyword", "rest", "kwargs")

    def __init__(self, wiring: str, keyword: Optional[str], rest: Tuple[Any, ...], kwargs: Dict[str, Any]):
        self.wiring, self.keyword, self.rest, self.kwargs = wiring, keyword, rest, kwargs

    @classmethod
    def take_apart(cls, wiring: str, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple["Call", Any]:
        """The call and the region's input."""
        if not args and not kwargs:
            raise ArgumentError("the region was called without arguments, expected what its first block takes")
        if wiring == SPREAD:
            return cls(wiring, None, (), kwargs), args
        if args:
            return cls(wiring, None, args[1:], kwargs), args[0]
        # The boundary is given by name: the first keyword.
        keyword = next(iter(kwargs))
        rest = {name: value for name, value in kwargs.items() if name != keyword}
        return cls(wiring, keyword, (), rest), kwargs[keyword]

    def run(self, block: Any, boundary: Any) -> Any:
        """Calls a block."""
        if self.wiring == SPREAD:
            return block(*boundary, **self.kwargs)
        if self.keyword is not None:
            return block(**{self.keyword: boundary}, **self.kwargs)
        return block(boundary, *self.rest, **self.kwargs)

    def hand_on(self, output: Any) -> Any:
        """What of a block's output the next block takes."""
        if self.wiring == FIRST and isinstance(output, (tuple, list)):
            return output[0]
        return output

    def extras(self) -> Tuple[Any, ...]:
        """What is the same for all blocks, as one tree."""
        return self.rest, self.kwargs

    def with_extras(self, extras: Tuple[Any, ...]) -> "Call":
        rest, kwargs = extras
        return Call(self.wiring, self.keyword, rest, kwargs)
