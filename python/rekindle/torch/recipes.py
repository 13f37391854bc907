"""Which calls a second run of a stage needs, and which results are worth keeping so that it needs fewer of them.

A stage is *studied* once: every call it makes is written down, with where its arguments come from, what autograd saves of it,
and how long it takes. From that it is known what a second run has to compute for the values that the backward reads. The rest
is left out. Where a result is kept, so is all that only this result is made from: with attention's arguments kept nobody
computes rotary embeddings again, and with what lies between attention and the feed-forward part kept nobody computes the product
before it. The results are taken in the order of time per byte, and every few of them are a *level* that a plan may use.

Only what is understood is left out. A stage that writes into tensors, calls kernels of its own, or does anything else that
PyTorch's mode for functions does not see is not studied, and is run again as a whole.
"""

from __future__ import annotations

import time
from typing import Any, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from . import trees
from .keeping import Following, all_tensors, fills_its_memory
from .random_state import Generators

#: What a second run does with a call: makes it, leaves it out, or takes its result from what was kept.
RUN, SKIP, KEEP = "run", "skip", "keep"

#: Results that are smaller are not worth a copy.
LEAST = 1 << 16

#: At most so many levels are measured.
LEVELS = 8

#: Calls that tell of a tensor what every tensor of its shape and layout has. Others that give no tensor may depend on values.
OF_THE_LAYOUT = frozenset(
    ("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous", "storage_offset", "is_floating_point")
    + ("is_complex", "element_size", "get_device", "__len__")
)

#: What makes memory for others to write to, perhaps in ways that nobody sees.
FACTORIES = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros")
)


class Recipe:
    """Of every call of a stage, in order: the function, and what a second run does with it."""

    __slots__ = ("steps",)

    def __init__(self, steps: Sequence[Tuple[Any, str]]):
        self.steps = list(steps)

    def __deepcopy__(self, _memo: Any) -> "Recipe":
        # Never changed, and functions are no values to copy.
        return self


class Seen:
    """One call of a stage."""

    __slots__ = ("function", "sources", "of_arguments", "own", "must", "may_be_kept", "size", "start", "took")

    def __init__(self, function: Any, sources: List[Optional[int]], start: int):
        self.function = function
        #: Of each tensor among its arguments, the call that made it; none for what comes from outside of the stage.
        self.sources = sources
        #: The arguments that autograd saved, and whether it saved something else.
        self.of_arguments: Set[int] = set()
        self.own = False
        #: Whether it has to be made whatever is kept, and whether its result could be kept instead.
        self.must = self.may_be_kept = False
        self.size, self.start, self.took = 0, start, 0.0


class _Made(NamedTuple):
    call: int
    tensor: torch.Tensor
    version: int
    grad_fn: Any


class Study:
    """One run of a stage, watched. Everything it makes stays until the study is over: memory tells tensors apart."""

    def __init__(self, outside: Iterable[torch.Tensor], generators: Optional[Generators] = None):
        self.outside = {trees.storage_key(tensor) for tensor in outside}
        self.generators = generators
        self.calls: List[Seen] = []
        self.saved = 0
        self.why: Optional[str] = None
        self._made: Dict[int, _Made] = {}
        self._memory: Set[int] = set()
        self._inside: Optional[List[torch.Tensor]] = None
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)

    def of(self, block: Any) -> Any:
        """What runs a block under study."""

        def run(*args: Any, **kwargs: Any) -> Any:
            # Other buffers than at other times may stand in, so that what is written to them leaves no trace.
            self.outside |= {trees.storage_key(tensor) for tensor in (*block.parameters(), *block.buffers())}
            with self._hooks, Following(self._call):
                return block(*args, **kwargs)

        return run

    def end(self) -> None:
        """Lets go of everything that was made."""
        self._made.clear()

    def _give_up(self, why: str) -> None:
        self.why = self.why or why

    def _save(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._inside is None:
            self._give_up("something is saved by what is no call")
        else:
            self._inside.append(tensor.detach())
        self.saved += 1
        return tensor.detach()

    def _source(self, tensor: torch.Tensor) -> Optional[int]:
        made = self._made.get(id(tensor))
        if made is not None:
            if tensor._version != made.version or tensor.grad_fn is not made.grad_fn:
                self._give_up("a result is changed by what is no call")
            return made.call
        key = trees.storage_key(tensor)
        if key in self._memory or (key not in self.outside and tensor.numel()):
            self._give_up("a tensor comes from what is no call")
        return None

    def _call(self, function: Any, args: Sequence[Any], kwargs: Dict[str, Any]) -> Any:
        if self.why is not None:
            return function(*args, **kwargs)
        arguments = all_tensors(args, kwargs)
        seen = Seen(function, [self._source(tensor) for tensor in arguments], self.saved)
        versions = [tensor._version for tensor in arguments]
        before = None if self.generators is None else self.generators.state()
        saved: List[torch.Tensor] = []
        self._inside = saved
        start = self._now()
        try:
            output = function(*args, **kwargs)
        finally:
            self._inside = None
        seen.took = (start, self._now())  # type: ignore[assignment]
        outputs, _ = trees.flatten(output)
        draws = before is not None and not self.generators.same(before, self.generators.state())  # type: ignore[union-attr]
        if [tensor._version for tensor in arguments] != versions or kwargs.get("out") is not None:
            self._give_up("a call writes into a tensor")
        if name_of(function) in FACTORIES or name_of(function) in ("__set__", "__setitem__"):
            self._give_up("memory is made for something to be written to it")
        seen.must = draws or (not outputs and not (tells_of_the_layout(function) and is_plain(output)))
        self._note(seen, arguments, outputs, saved, draws)
        number = len(self.calls)
        self.calls.append(seen)
        for tensor in outputs:
            self._made[id(tensor)] = _Made(number, tensor, tensor._version, tensor.grad_fn)
            self._memory.add(trees.storage_key(tensor))
        return output

    def _note(
        self, seen: Seen, arguments: List[torch.Tensor], outputs: List[torch.Tensor], saved: List[torch.Tensor], draws: bool
    ) -> None:
        owners = {trees.storage_key(tensor): position for position, tensor in enumerate(arguments)}
        pieces: Dict[int, int] = {}
        for tensor in saved:
            position = owners.get(trees.storage_key(tensor))
            if position is not None:
                seen.of_arguments.add(position)
            else:
                seen.own = True
                pieces[trees.storage_key(tensor)] = trees.storage_bytes(tensor)
        of_its_own = bool(outputs) and all(
            trees.storage_key(tensor) not in owners
            and trees.storage_key(tensor) not in self.outside
            and trees.storage_key(tensor) not in self._memory
            and fills_its_memory(tensor)
            for tensor in (*outputs, *(tensor for tensor in saved if trees.storage_key(tensor) not in owners))
        )
        pieces.update((trees.storage_key(tensor), trees.storage_bytes(tensor)) for tensor in outputs)
        seen.size = sum(pieces.values())
        seen.may_be_kept = of_its_own and not draws and any(tensor.requires_grad for tensor in outputs)

    def _now(self) -> Any:
        return time.perf_counter_ns()


class DeviceStudy(Study):
    """The same with the device's own time of each call."""

    def _now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", ""))


def tells_of_the_layout(function: Any) -> bool:
    # Attributes of a tensor, such as its shape, that are no tensors themselves.
    return name_of(function) in OF_THE_LAYOUT or name_of(function) == "__get__"


def is_plain(value: Any) -> bool:
    """Whether a value is one that can be given again, and holds on to nothing."""
    if isinstance(value, tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device, torch.layout))


def needed(calls: Sequence[Seen], kept: FrozenSet[int]) -> Set[int]:
    """The calls that a second run makes, so that it has everything that autograd saved."""
    found: Set[int] = set()
    # A call's arguments are made by calls before it.
    wanted = [False] * len(calls)
    for number in range(len(calls) - 1, -1, -1):
        call, is_kept = calls[number], number in kept
        runs = call.must or (not is_kept and (wanted[number] or call.own))
        if runs:
            found.add(number)
        for position, source in enumerate(call.sources):
            if source is not None and (runs or position in call.of_arguments):
                wanted[source] = True
    return found


def levels_of(calls: Sequence[Seen], saved: int) -> List[Recipe]:
    """Ways to keep more and more, the best of all results by time per byte first."""
    able = {number for number, call in enumerate(calls) if call.may_be_kept and call.size >= LEAST and call.start < saved}
    kept: FrozenSet[int] = frozenset()
    found: List[Recipe] = []

    def cost(kept: FrozenSet[int]) -> float:
        return sum(calls[number].took for number in needed(calls, kept))

    now = cost(kept)
    least = now / 1000
    while len(found) < LEVELS:
        gains = [(now - cost(kept | {number}), number) for number in sorted(able - kept)]
        gains = [(gain, number) for gain, number in gains if gain > least]
        if not gains:
            break
        _, best = max((gain / calls[number].size, number) for gain, number in gains)
        kept |= {best}
        now = cost(kept)
        found.append(recipe_of(calls, saved, kept))
    return found


def recipe_of(calls: Sequence[Seen], saved: int, kept: FrozenSet[int]) -> Recipe:
    runs = needed(calls, kept)
    steps = []
    for number, call in enumerate(calls):
        # A second run stops with the last value that is saved. What comes later is no matter.
        last = call.start >= saved
        step = RUN if number in runs or last else KEEP if number in kept else SKIP
        steps.append((call.function, step))
    return Recipe(steps)


def with_times(calls: List[Seen], runs: Sequence[Sequence[Seen]]) -> bool:
    """Gives calls the shortest of the times that several runs took; false where these made other calls."""
    for run in runs:
        if [call.function for call in run] != [call.function for call in calls]:
            return False
    for number, call in enumerate(calls):
        call.took = min(_elapsed(run[number].took) for run in runs)
    return True


def _elapsed(took: Any) -> float:
    start, end = took
    return float(end - start) if isinstance(start, int) else start.elapsed_time(end) * 1e6
