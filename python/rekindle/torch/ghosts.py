"""Graphs that wait for their values.

A stage whose tape is dropped is run again before its backward. Most of that can be saved twice over: autograd's graph was made
in the first run already, and a second run may stop as soon as it has made the last value that the graph saves, which leaves
out what goes into the output alone, such as a block's last product of matrices. So the first run keeps its graph without any
value, a *ghost*, and the second run fills the values in and stops.

Neither the stage's input nor its output is held by a ghost. The graph begins and ends with a node of our own, which are tied
to tensors without an element; gradients come in and go out through a box that both know.
"""

from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple

import torch

from .trees import describe


class Stop(BaseException):
    """Raised in a second run when everything is there. Not an `Exception`: blocks that catch those must not catch this."""


class Box:
    """The gradients that a ghost starts from, and those it ends with."""

    __slots__ = ("incoming", "outgoing")

    def __init__(self) -> None:
        self.incoming: Sequence[Optional[torch.Tensor]] = ()
        self.outgoing: Sequence[Optional[torch.Tensor]] = ()


class Begin(torch.autograd.Function):
    """From the start of a ghost to its inputs."""

    @staticmethod
    def forward(ctx: Any, box: Box, _start: torch.Tensor, *inputs: torch.Tensor) -> Any:
        ctx.box = box
        ctx.set_materialize_grads(False)
        return tuple(tensor.detach() for tensor in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[torch.Tensor]) -> Any:
        ctx.box.outgoing = gradients
        return (None,) * (2 + len(gradients))


class End(torch.autograd.Function):
    """From the outputs of a ghost to its end."""

    @staticmethod
    def forward(ctx: Any, box: Box, *outputs: torch.Tensor) -> torch.Tensor:
        ctx.box = box
        ctx.set_materialize_grads(False)
        return outputs[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, _gradient: Optional[torch.Tensor]) -> Any:
        incoming, ctx.box.incoming = ctx.box.incoming, ()
        return (None, *incoming)


# Without the wrapper that looks for functorch's transforms, in which a region cannot run anyway.
_begin = super(torch.autograd.Function, Begin).apply
_end = super(torch.autograd.Function, End).apply


class Holder:
    """The place of a saved value in a graph. It goes when the graph has read it, and the value with it."""

    __slots__ = ("value", "shape", "dtype")

    def __init__(self, like: torch.Tensor) -> None:
        self.value: Optional[torch.Tensor] = None
        self.shape, self.dtype = like.shape, like.dtype


def _read(holder: Holder) -> torch.Tensor:
    if holder.value is None:
        raise RuntimeError("a graph without its values was gone back through; this is a bug in rekindle")
    return holder.value


class Ghost:
    """The graph of one stage without its values, or, once they are filled in, its tape."""

    __slots__ = ("box", "start", "end", "holders", "input_wanted", "wanted")

    def __init__(self) -> None:
        self.box = Box()
        self.start: Optional[torch.Tensor] = None
        self.end: Optional[torch.Tensor] = None
        self.holders: List[Holder] = []
        self.input_wanted: Sequence[bool] = ()
        self.wanted: List[bool] = []

    def begin(self, tensors: List[torch.Tensor], wanted: Sequence[bool]) -> List[torch.Tensor]:
        """The stage's inputs, as the graph sees them. The stage is to run within :meth:`noting`."""
        self.input_wanted = wanted
        asked = [tensor for tensor, is_wanted in zip(tensors, wanted) if is_wanted]
        if not asked:
            return tensors
        self.start = asked[0].new_empty(0, dtype=torch.float32).requires_grad_()
        tied = iter(_begin(self.box, self.start, *asked))
        return [next(tied) if is_wanted else tensor for tensor, is_wanted in zip(tensors, wanted)]

    def noting(self) -> Any:
        """Within it, autograd keeps places in place of values."""
        holders = self.holders

        # The graph holds on to this function for as long as it lives: it must not know the ghost, which holds the graph.
        def place(tensor: torch.Tensor) -> Holder:
            holder = Holder(tensor)
            holders.append(holder)
            return holder

        return torch.autograd.graph.saved_tensors_hooks(place, _read)

    def finish(self, outputs: List[torch.Tensor]) -> None:
        self.wanted = [output.requires_grad for output in outputs]
        asked = [output for output in outputs if output.requires_grad]
        if asked:
            self.end = _end(self.box, *asked)

    def filling(self) -> "Filling":
        """Within it, a second run of the stage fills the values in, and stops with the last."""
        return Filling(self.holders)


class Filling:
    """A second run. Knows the places and not the graph they are in."""

    __slots__ = ("holders", "at", "hooks", "complete", "differs", "stopped")

    def __init__(self, holders: List[Holder]):
        self.holders, self.at, self.stopped = holders, 0, False
        # The first value of another shape or type: which, what it was, and what it is.
        self.differs: Optional[Tuple[int, Tuple[Any, ...], Tuple[Any, ...]]] = None
        self.hooks: Any = None
        # A graph that saves nothing needs no second run at all.
        self.complete = not holders

    def _fill(self, tensor: torch.Tensor) -> None:
        """What the second run's own graph keeps is nothing: nobody goes back through it, and a graph that kept a tensor it
        has made would hold itself."""
        holders = self.holders
        if self.at < len(holders):
            holder = holders[self.at]
            if tensor.shape != holder.shape or tensor.dtype != holder.dtype:
                self.differs = self.at, (tuple(holder.shape), holder.dtype), describe(tensor)
                self.stopped = True
                raise Stop
            holder.value = tensor.detach()
        self.at += 1
        if self.at == len(holders):
            self.complete = self.stopped = True
            raise Stop

    def __enter__(self) -> "Filling":
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._fill, _read)
        self.hooks.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self.hooks.__exit__(kind, error, trace)
        self.hooks = None
        # From here on the graph alone holds the values, and lets each go when it has read it. The list is emptied, not
        # replaced: the graph knows it.
        self.holders.clear()
        # PyTorch 1.13 makes an error of its own out of what a hook raises.
        return self.stopped and kind is not None
