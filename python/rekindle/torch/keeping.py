"""What a stage that is run again need not compute again: the results of its costly calls.

The first run of a stage that leaves a *ghost* (see `ghosts`) may keep what some calls gave: attention, or all products of
matrices. The second run then takes these results where it comes to the calls, and computes only what lies between them.
Which calls there are is seen with PyTorch's own mode for functions, so that a block's code is left as it is.

A kept piece is memory, not a tensor: what a call gave and what autograd saved of it are often views of the same memory, which
is kept once. What autograd saved of a call's *arguments* is not kept. The second run has the arguments.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode

from . import trees

#: What is kept: the results of attention, or of attention and all other products of matrices.
ATTENTION = "attention"
PRODUCTS = "products"
LEVELS = (ATTENTION, PRODUCTS)
#: What lies before attention is computed again only when the backward comes to it.
PARTS = "parts"
#: The options that leave a part of the tape to a second run within the backward.
PARTIAL = (ATTENTION, PRODUCTS, PARTS)


def _found(*places: Tuple[Any, Sequence[str]]) -> FrozenSet[Any]:
    return frozenset(getattr(owner, name) for owner, names in places for name in names if hasattr(owner, name))


ATTENTION_CALLS = _found((functional, ("scaled_dot_product_attention", "_scaled_dot_product_attention")))
PRODUCT_CALLS = ATTENTION_CALLS | _found(
    (functional, ("linear", "conv1d", "conv2d", "conv3d")),
    (torch, ("matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d")),
    (torch.Tensor, ("matmul", "__matmul__", "mm", "bmm", "addmm", "baddbmm")),
)


def calls_of(level: Optional[str]) -> FrozenSet[Any]:
    """The functions whose results a level keeps."""
    if level is None:
        return frozenset()
    # Autocast casts weights within a call, and these casts would be kept as if they were results.
    if level == PRODUCTS and not torch.is_autocast_enabled():
        return PRODUCT_CALLS
    return ATTENTION_CALLS


def may_be_left_out(function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> bool:
    """Whether a call does nothing but give its result. One with dropout draws numbers, and the draws after it depend on that."""
    if kwargs.get("out") is not None:
        return False
    if function in ATTENTION_CALLS:
        dropout = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
        return not dropout
    return True


class View:
    """Where a tensor lies in the memory of another: of an argument, or of a kept piece."""

    __slots__ = ("of", "is_argument", "shape", "strides", "offset")

    def __init__(self, of: int, is_argument: bool, tensor: torch.Tensor, start: int):
        self.of, self.is_argument = of, is_argument
        self.shape, self.strides = tuple(tensor.shape), tuple(tensor.stride())
        self.offset = tensor.storage_offset() - start

    def over(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        return tensor.as_strided(self.shape, self.strides, tensor.storage_offset() + self.offset)


class Call:
    """One costly call of a first run: what autograd saved of it, and how to give its result again."""

    __slots__ = ("function", "start", "end", "arguments", "saved", "outputs", "spec", "wanted", "kept", "index", "left_out")

    def __init__(self, function: Any, start: int, arguments: List[torch.Tensor]):
        self.function, self.start, self.end = function, start, start
        self.arguments = [_layout(tensor) for tensor in arguments]
        # Of each value that autograd saved, where it lies; none where that is not known.
        self.saved: List[Optional[View]] = []
        self.outputs: List[View] = []
        self.spec: Tuple[Any, ...] = ()
        self.wanted: List[bool] = []
        #: Whether the result is kept; else a second run makes the call.
        self.kept = False
        #: Where there is a recipe: which call of the stage it is, and, where nobody needs its result, what that looked like.
        self.index = -1
        self.left_out: Optional[List[Tuple[Any, ...]]] = None


def _layout(tensor: torch.Tensor) -> Tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype


def tensors_in(args: Sequence[Any], kwargs: Dict[str, Any]) -> List[torch.Tensor]:
    return [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]


def all_tensors(args: Sequence[Any], kwargs: Dict[str, Any]) -> List[torch.Tensor]:
    """Also those within lists, such as what is concatenated."""
    found: List[torch.Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += all_tensors(value, {})
        elif isinstance(value, dict):
            found += all_tensors((), value)
    return found


class Pieces:
    """The kept memory of one stage."""

    __slots__ = ("tensors", "_changing", "_known")

    def __init__(self) -> None:
        #: Each piece as all the elements of its memory; none while it is elsewhere.
        self.tensors: List[Optional[torch.Tensor]] = []
        self._changing: List[Tuple[Call, torch.Tensor, int]] = []
        self._known: Dict[Tuple[int, torch.dtype], int] = {}

    def keep(self, call: Call, arguments: List[torch.Tensor], saved: List[torch.Tensor], output: Any) -> None:
        """Keeps what a call gave, and what was saved of it that a second run has not got."""
        outputs, call.spec = trees.flatten(output)
        owners = {trees.storage_key(tensor): position for position, tensor in enumerate(arguments)}
        # As the graph has it: an argument's own view comes before memory that happens to be shared.
        made = [tensor for tensor in (*outputs, *saved) if trees.storage_key(tensor) not in owners]
        whole = all(fills_its_memory(tensor) for tensor in made)
        given_back = any(trees.storage_key(tensor) in owners for tensor in outputs)
        call.kept = bool(outputs) and whole and not given_back
        for tensor in saved:
            position = owners.get(trees.storage_key(tensor))
            if position is not None:
                call.saved.append(View(position, True, tensor, arguments[position].storage_offset()))
            else:
                call.saved.append(View(self._piece(tensor), False, tensor, 0) if call.kept else None)
        if call.kept:
            call.outputs = [View(self._piece(tensor), False, tensor, 0) for tensor in outputs]
            call.wanted = [tensor.requires_grad for tensor in outputs]
            self._changing += [(call, tensor.detach(), tensor._version) for tensor in made]

    def look(self, call: Call, arguments: List[torch.Tensor], saved: List[torch.Tensor]) -> None:
        """Only tells what was saved of a call's arguments from what was saved of its result."""
        owners = {trees.storage_key(tensor): position for position, tensor in enumerate(arguments)}
        for tensor in saved:
            position = owners.get(trees.storage_key(tensor))
            if position is None:
                call.saved.append(None)
            else:
                call.saved.append(View(position, True, tensor, arguments[position].storage_offset()))

    def _piece(self, tensor: torch.Tensor) -> int:
        key = trees.storage_key(tensor), tensor.dtype
        if key not in self._known:
            elements = trees.storage_bytes(tensor) // tensor.element_size()
            self._known[key] = len(self.tensors)
            self.tensors.append(tensor.detach().as_strided((elements,), (1,), 0))
        return self._known[key]

    def close(self) -> None:
        """When the first run is over. A result that was written over since is no result: that call is made again."""
        for call, tensor, version in self._changing:
            if tensor._version != version:
                call.kept = False
        self._changing, self._known = [], {}

    def leave_out(self, calls: Sequence[Call], end: int) -> None:
        """What a call gives after which autograd saves nothing more is never asked for: a second run stops at that call."""
        read = {view.of for call in calls for view in call.saved if view is not None and not view.is_argument}
        read |= {view.of for call in calls if call.end < end for view in call.outputs}
        for position, piece in enumerate(self.tensors):
            if position not in read and piece is not None:
                self.tensors[position] = piece.new_empty(0)

    def clear(self) -> None:
        self.tensors = []


def fills_its_memory(tensor: torch.Tensor) -> bool:
    """Not a small part of something large, which would be kept with it."""
    return trees.storage_bytes(tensor) <= max(2 * trees.tensor_bytes(tensor), 4096)


class Watching(TorchFunctionMode):  # type: ignore[misc]
    """Within it, calls of some functions go through ``handle``."""

    def __init__(self, functions: FrozenSet[Any], handle: Callable[[Any, Sequence[Any], Dict[str, Any]], Any]):
        super().__init__()
        self.functions, self.handle = functions, handle

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if function in self.functions and may_be_left_out(function, args, kwargs or {}):
            return self.handle(function, args, kwargs or {})
        return function(*args, **(kwargs or {}))


class Following(TorchFunctionMode):  # type: ignore[misc]
    """Within it, every call goes through ``handle``."""

    def __init__(self, handle: Callable[[Any, Sequence[Any], Dict[str, Any]], Any]):
        super().__init__()
        self.handle = handle

    def __torch_function__(self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        return self.handle(function, args, kwargs or {})
