"""Graphs that wait for their values.

A stage whose tape is dropped is run again before its backward. Most of that can be saved twice over: autograd's graph was made
in the first run already, and a second run may stop as soon as it has made the last value that the graph saves, which leaves
out what goes into the output alone, such as a block's last product of matrices. So the first run keeps its graph without any
value, a *ghost*, and the second run fills the values in and stops.

Neither the stage's input nor its output is held by a ghost. The graph begins and ends with a node of our own, which are tied
to tensors without an element; gradients come in and go out through a box that both know.

A ghost may keep the results of costly calls (`keeping`), so that its second run does not make them again. And it may be filled
in two *parts*: first what lies behind its attention, which goes back first, and what lies before only when the backward comes
to it. The two are then never there at once.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from .keeping import ATTENTION_CALLS, Call, Following, Pieces, View, Watching, all_tensors, calls_of, tensors_in
from .recipes import KEEP, RUN, Recipe
from .trees import describe, flatten, in_words, unflatten


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

    __slots__ = ("value", "shape", "dtype", "later", "__weakref__")

    def __init__(self, like: torch.Tensor) -> None:
        self.value: Optional[torch.Tensor] = None
        self.shape, self.dtype = like.shape, like.dtype
        #: Fills this place when it is read, where it is of the part that comes last.
        self.later: Optional["Later"] = None


def _read(holder: Holder) -> torch.Tensor:
    if holder.value is None and holder.later is not None:
        holder.later.come()
    if holder.value is None:
        raise RuntimeError("a graph without its values was gone back through; this is a bug in rekindle")
    return holder.value


class Later:
    """The part of a ghost that is filled when the backward comes to it. Places know this; it must not hold on to them, or a
    step that is given up would stay."""

    __slots__ = ("run", "places", "call")

    def __init__(self, places: List[Holder], call: Call):
        #: The places before a costly call and of what autograd saved of it, and the call.
        self.places, self.call = [weakref.ref(place) for place in places], call
        #: Runs the stage again within :meth:`filling`; set by the engine.
        self.run: Optional[Callable[["Later"], None]] = None
        saved = zip(places[call.start :], call.saved)
        of_arguments = [place for place, view in saved if view is not None and view.is_argument]
        for place in (*places[: call.start], *of_arguments):
            place.later = self

    def come(self) -> None:
        run, self.run = self.run, None
        if run is not None:
            run(self)

    def filling(self) -> "Filling":
        places = [reference() for reference in self.places]
        return Filling(places, [self.call], Pieces(), until=self.call)


class Ghost:
    """The graph of one stage without its values, or, once they are filled in, its tape."""

    __slots__ = (
        *("box", "start", "end", "holders", "input_wanted", "wanted", "calls", "pieces", "cut", "waits", "later", "recipe"),
    )

    def __init__(self) -> None:
        self.box = Box()
        self.start: Optional[torch.Tensor] = None
        self.end: Optional[torch.Tensor] = None
        self.holders: List[Holder] = []
        self.input_wanted: Sequence[bool] = ()
        self.wanted: List[bool] = []
        #: The costly calls of the first run, and what is kept of them.
        self.calls: List[Call] = []
        self.pieces = Pieces()
        #: The first call of attention, before which a ghost of two parts is cut.
        self.cut: Optional[Call] = None
        #: What it is filled from when it goes back; none where that is done before.
        self.waits: Any = None
        self.later: Optional[Later] = None
        #: What its second run does with each call, where that is known.
        self.recipe: Optional[Recipe] = None

    def begin(self, tensors: List[torch.Tensor], wanted: Sequence[bool]) -> List[torch.Tensor]:
        """The stage's inputs, as the graph sees them. The stage is to run within :meth:`noting`."""
        self.input_wanted = wanted
        asked = [tensor for tensor, is_wanted in zip(tensors, wanted) if is_wanted]
        if not asked:
            return tensors
        self.start = asked[0].new_empty(0, dtype=torch.float32).requires_grad_()
        tied = iter(_begin(self.box, self.start, *asked))
        return [next(tied) if is_wanted else tensor for tensor, is_wanted in zip(tensors, wanted)]

    def noting(
        self, level: Optional[str] = None, parts: bool = False, values: bool = False, recipe: Optional[Recipe] = None
    ) -> Any:
        """Within it, autograd keeps places in place of values. What ``level`` says is kept; with ``parts`` the cut is looked
        for, and with ``values`` what lies behind it is kept as in any tape. A recipe says of each call what is kept."""
        self.recipe = recipe
        return Noting(self, level, parts, values)

    def keep_nothing(self) -> None:
        """What was kept is not there after all: a second run makes all calls."""
        for call in self.calls:
            call.kept = False
        if self.recipe is not None:
            # What it leaves out is what kept results would have been made from.
            self.recipe = None
            self.calls.clear()
        self.pieces.clear()

    def finish(self, outputs: List[torch.Tensor]) -> None:
        self.wanted = [output.requires_grad for output in outputs]
        asked = [output for output in outputs if output.requires_grad]
        if asked:
            self.end = _end(self.box, *asked)

    def filling(self, parts: bool = False) -> "Filling":
        """Within it, a second run of the stage fills the values in, and stops with the last. With ``parts``, those behind the
        cut; the others come when they are read."""
        if parts and self.cut is not None:
            self.split()
            return Filling(self.holders, self.calls, self.pieces, after=self.cut)
        return Filling(self.holders, self.calls, self.pieces, recipe=self.recipe)

    def split(self) -> None:
        """The places before the cut are filled when they are read."""
        cut = self.cut
        if cut is not None and self.later is None:
            self.later = Later(self.holders[: cut.end], cut)


class Noting:
    """A first run. The graph holds on to what packs its values for as long as it lives: that must not know the ghost, which
    holds the graph."""

    __slots__ = ("ghost", "hooks", "mode", "functions", "inside", "values", "behind", "at_call")

    def __init__(self, ghost: Ghost, level: Optional[str], parts: bool, values: bool):
        self.ghost = ghost
        self.functions = frozenset() if ghost.recipe is not None else calls_of(level)
        self.values = values
        self.at_call = 0
        # What is saved of the call at hand, and whether the cut was passed: lists, which the packing function shares.
        self.inside: List[Optional[List[torch.Tensor]]] = [None]
        self.behind: List[bool] = [False]
        watched = self.functions | (ATTENTION_CALLS if parts else frozenset())
        self.mode: Any = Watching(watched, self._call) if watched else None
        self.hooks: Any = None

    def of(self, block: Any) -> Any:
        """What runs a block. With a recipe every call of the block is followed, and none that others make around it."""
        return block if self.ghost.recipe is None else _followed(block, self._follow)

    def __enter__(self) -> "Noting":
        holders, inside, behind, values = self.ghost.holders, self.inside, self.behind, self.values

        def place_alone(tensor: torch.Tensor) -> Holder:
            # Nothing is kept, and no call looked at. Every value of every stage comes through here.
            holder = Holder(tensor)
            holders.append(holder)
            return holder

        def place(tensor: torch.Tensor) -> Holder:
            holder = Holder(tensor)
            if inside[0] is not None:
                inside[0].append(tensor.detach())
            elif values and behind[0]:
                holder.value = tensor.detach()
            holders.append(holder)
            return holder

        alone = self.mode is None and self.ghost.recipe is None and not values
        self.hooks = torch.autograd.graph.saved_tensors_hooks(place_alone if alone else place, _read)
        self.hooks.__enter__()
        if self.mode is not None:
            self.mode.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self.mode is not None:
            self.mode.__exit__(kind, error, trace)
            # The mode knows this, and this the ghost; the graph must know neither.
            self.mode = None
        self.hooks.__exit__(kind, error, trace)
        self.hooks = None
        ghost = self.ghost
        ghost.pieces.close()
        if ghost.recipe is not None and not all(call.kept or call.left_out is not None for call in ghost.calls):
            ghost.keep_nothing()
        ghost.pieces.leave_out(ghost.calls, len(ghost.holders))

    def _run(self, call: Call, function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Tuple[Any, List[torch.Tensor]]:
        """Makes a call, and tells what autograd saved of it."""
        saved: List[torch.Tensor] = []
        self.inside[0] = saved
        try:
            output = function(*args, **kwargs)
        finally:
            self.inside[0] = None
        call.end = len(self.ghost.holders)
        return output, saved

    def _follow(self, function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        """A call of a stage with a recipe. One that makes other calls than it did when it was studied has none."""
        ghost, at = self.ghost, self.at_call
        self.at_call += 1
        recipe = ghost.recipe
        if recipe is not None and (at >= len(recipe.steps) or recipe.steps[at][0] != function):
            ghost.keep_nothing()
            recipe = None
        if recipe is None or recipe.steps[at][1] == RUN:
            return function(*args, **kwargs)
        arguments = all_tensors(args, kwargs)
        call = Call(function, len(ghost.holders), arguments)
        call.index = at
        output, saved = self._run(call, function, args, kwargs)
        if recipe.steps[at][1] == KEEP:
            ghost.pieces.keep(call, arguments, saved, output)
        else:
            ghost.pieces.look(call, arguments, saved)
            outputs, call.spec = flatten(output)
            if all(view is not None for view in call.saved):
                call.left_out = [(tuple(t.shape), t.dtype, t.device, t.requires_grad) for t in outputs]
        ghost.calls.append(call)
        return output

    def _call(self, function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        ghost, arguments = self.ghost, tensors_in(args, kwargs)
        call = Call(function, len(ghost.holders), arguments)
        output, saved = self._run(call, function, args, kwargs)
        is_cut = ghost.cut is None and function in ATTENTION_CALLS
        if function in self.functions:
            ghost.pieces.keep(call, arguments, saved, output)
        else:
            # Seen for the cut alone: what is not an argument's is made by the call itself.
            ghost.pieces.look(call, arguments, saved)
        if is_cut:
            ghost.cut = call
            self.behind[0] = True
        if self.values and self.behind[0]:
            for holder, tensor, view in zip(ghost.holders[call.start :], saved, call.saved):
                if not (is_cut and view is not None and view.is_argument):
                    holder.value = tensor
        ghost.calls.append(call)
        return output


class Filling:
    """A second run. Knows the places and not the graph they are in."""

    __slots__ = (
        *("holders", "calls", "pieces", "after", "until", "at", "call_at"),
        *("hooks", "mode", "complete", "differs", "stopped", "recipe", "at_call"),
    )

    def __init__(
        self,
        holders: List[Any],
        calls: Sequence[Call] = (),
        pieces: Optional[Pieces] = None,
        after: Optional[Call] = None,
        until: Optional[Call] = None,
        recipe: Optional[Recipe] = None,
    ):
        self.holders, self.at, self.stopped = holders, 0, False
        self.recipe, self.at_call = recipe, 0
        self.calls, self.pieces, self.call_at = calls, pieces or Pieces(), 0
        # With two parts: fill what lies behind a call, or what lies before it.
        self.after, self.until = after, until
        # The first value of another shape or type: which, what it was, and what it is.
        self.differs: Optional[Tuple[int, str, str]] = None
        self.hooks: Any = None
        self.mode: Any = None
        # A graph that saves nothing needs no second run at all.
        self.complete = not holders

    def _fill(self, tensor: torch.Tensor) -> None:
        """What the second run's own graph keeps is nothing: nobody goes back through it, and a graph that kept a tensor it
        has made would hold itself."""
        holders = self.holders
        if self.at < len(holders):
            holder = holders[self.at]
            # None where the graph is through with it.
            if holder is not None and (tensor.shape != holder.shape or tensor.dtype != holder.dtype):
                self._differ(in_words((tuple(holder.shape), holder.dtype)), in_words(describe(tensor)))
            if holder is not None and self._is_asked(self.at):
                holder.value = tensor.detach()
        self.at += 1
        self._stop_if_complete()

    def _is_asked(self, position: int) -> bool:
        after = self.after
        if after is None or position >= after.end:
            return True
        if position < after.start:
            return False
        view = after.saved[position - after.start]
        return view is None or not view.is_argument

    def _stop_if_complete(self) -> None:
        if self.at == len(self.holders) and self.until is None:
            self.complete = self.stopped = True
            raise Stop

    def _differ(self, forward: str, again: str) -> None:
        self.differs = self.at, forward, again
        self.stopped = True
        raise Stop

    def _call(self, function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        until = self.until
        if until is not None:
            if function is not until.function:
                return function(*args, **kwargs)
            call = until
        elif self.call_at < len(self.calls):
            call = self.calls[self.call_at]
        else:
            return function(*args, **kwargs)
        self.call_at += 1
        arguments = tensors_in(args, kwargs)
        found = [(tuple(t.shape), tuple(t.stride()), t.dtype) for t in arguments]
        if call.function is not function or self.at != call.start or found != call.arguments:
            self._differ(_words_of(call.function, call.arguments), _words_of(function, found))
        if until is not None:
            self._take_arguments(call, arguments)
            self.complete = self.stopped = True
            raise Stop
        if not call.kept:
            return function(*args, **kwargs)
        self._take(call, arguments)
        self.at = call.end
        self._stop_if_complete()
        made = [view.over(self._piece(view)) for view in call.outputs]
        for tensor, wanted in zip(made, call.wanted):
            # What follows has to be part of a graph again, so that autograd asks for its values.
            tensor.requires_grad_(wanted)
        return unflatten(made, call.spec)

    def _follow(self, function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        recipe, at = self.recipe, self.at_call
        assert recipe is not None
        self.at_call += 1
        expected = recipe.steps[at][0] if at < len(recipe.steps) else None
        if expected != function:
            self._differ(_words_of(expected, ()), _words_of(function, ()))
        call = self.calls[self.call_at] if self.call_at < len(self.calls) else None
        if call is None or call.index != at:
            return function(*args, **kwargs)
        self.call_at += 1
        arguments = all_tensors(args, kwargs)
        # Not their strides: those that nobody needs have no memory.
        found = [(tuple(t.shape), (), t.dtype) for t in arguments]
        if self.at != call.start or found != [(shape, (), dtype) for shape, _, dtype in call.arguments]:
            self._differ(_words_of(call.function, call.arguments), _words_of(function, found))
        self._take(call, arguments)
        self.at = call.end
        if call.end > call.start:
            self._stop_if_complete()
        if call.left_out is None:
            made, wanted = [view.over(self._piece(view)) for view in call.outputs], call.wanted
        else:
            made = [torch.empty((), dtype=dtype, device=device).expand(shape) for shape, dtype, device, _ in call.left_out]
            wanted = [is_wanted for *_, is_wanted in call.left_out]
        for tensor, is_wanted in zip(made, wanted):
            tensor.requires_grad_(is_wanted)
        return unflatten(made, call.spec)

    def _take(self, call: Call, arguments: List[torch.Tensor]) -> None:
        for position, view in enumerate(call.saved, call.start):
            if view is not None and self._is_asked(position):
                self.holders[position].value = view.over(arguments[view.of] if view.is_argument else self._piece(view))

    def _take_arguments(self, call: Call, arguments: List[torch.Tensor]) -> None:
        for holder, view in zip(self.holders[call.start :], call.saved):
            if holder is not None and view is not None and view.is_argument:
                holder.value = view.over(arguments[view.of])

    def _piece(self, view: View) -> torch.Tensor:
        piece = self.pieces.tensors[view.of]
        if piece is None:
            raise RuntimeError("what a call gave was kept and is not there; this is a bug in rekindle")
        return piece

    def of(self, block: Any) -> Any:
        """What runs a block."""
        return block if self.recipe is None else _followed(block, self._follow)

    def _fill_all(self) -> Callable[[torch.Tensor], None]:
        """:meth:`_fill` where every place is asked for and no call is left out: every value of every stage comes through here."""
        holders, last = self.holders, len(self.holders) - 1
        at = 0

        def fill(tensor: torch.Tensor) -> None:
            nonlocal at
            if at > last:
                return
            holder = holders[at]
            if tensor.shape != holder.shape or tensor.dtype != holder.dtype:
                self.at = at
                self._differ(in_words((tuple(holder.shape), holder.dtype)), in_words(describe(tensor)))
            holder.value = tensor.detach()
            at += 1
            self.at = at
            if at > last:
                self.complete = self.stopped = True
                raise Stop

        return fill

    def __enter__(self) -> "Filling":
        alone = not self.calls and self.recipe is None and self.after is None and self.until is None
        fill = self._fill_all() if alone else self._fill
        self.hooks = torch.autograd.graph.saved_tensors_hooks(fill, _read)
        self.hooks.__enter__()
        if self.calls and self.recipe is None:
            self.mode = Watching(frozenset(call.function for call in self.calls), self._call)
            self.mode.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if self.mode is not None:
            self.mode.__exit__(kind, error, trace)
            self.mode = None
        self.hooks.__exit__(kind, error, trace)
        self.hooks = None
        # From here on the graph alone holds the values, and lets each go when it has read it. The lists are emptied, not
        # replaced: the graph knows them.
        self.holders.clear()
        self.pieces.clear()
        # PyTorch 1.13 makes an error of its own out of what a hook raises.
        return self.stopped and kind is not None


def _followed(block: Any, handle: Callable[[Any, Sequence[Any], Dict[str, Any]], Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with Following(handle):
            return block(*args, **kwargs)

    return run


def _words_of(function: Any, arguments: Sequence[Tuple[Any, ...]]) -> str:
    given = ", ".join(in_words((shape, dtype)) for shape, _, dtype in arguments)
    return f"`{getattr(function, '__name__', function)}({given})`"
