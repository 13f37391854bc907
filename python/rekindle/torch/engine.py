"""The engine: runs, tapes and goes back through the stages of a region, as the executor says.

A boundary is a list of tensors without a graph. A tape is a graph of one stage: the stage's input as leaves, and its
output. A gradient is a list with a tensor or ``None`` for each tensor of a boundary.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import torch

from . import trees
from .autocast_state import Autocast
from .captures import check_captures
from .errors import InputChanged, KeptChanged, StageChanged, UnknownOption
from .ghosts import Filling, Ghost, Later
from .keeping import PARTIAL, PARTS
from .random_state import Draws, Generators
from .recipes import Recipe
from .stand_ins import StandIns
from .stage import Stage, Way
from .wiring import Call

Gradient = List[Optional[torch.Tensor]]


class Boundary:
    """The tensors between two stages."""

    __slots__ = ("tensors", "spec", "wanted", "versions")

    def __init__(self, tensors: List[torch.Tensor], spec: Tuple[Any, ...], wanted: Sequence[bool]):
        self.tensors, self.spec = tensors, spec
        # Which of them need a gradient.
        self.wanted = wanted
        # Of the region's input, which others can change, the versions at the forward pass.
        self.versions: Optional[List[int]] = None


class Tape:
    """What the backward of a stage reads: the graph behind its outputs."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: List[Optional[torch.Tensor]], outputs: List[torch.Tensor]):
        self.inputs, self.outputs = inputs, outputs


class Engine:
    """One step of a region, or its measurement."""

    def __init__(self, stages: List[Stage], call: Call, generators: Generators):
        count = len(stages)
        self.stage_list = stages
        self.autocast = Autocast()
        self.draws = Draws(generators, count)
        self.ran = [False] * count
        self.made: List[Optional[List[Tuple[Any, ...]]]] = [None] * count
        self.buffer_starts: List[Any] = [None] * count
        # What is the same for all stages: with leaves of its own where it needs a gradient.
        tensors, spec = trees.flatten(call.extras())
        leaves = [tensor.detach().requires_grad_() if tensor.requires_grad else tensor for tensor in tensors]
        self.call = call.with_extras(trees.unflatten(leaves, spec)) if tensors else call
        self.extras = tensors
        self.extra_versions = [tensor._version for tensor in tensors]
        self.extra_leaves = [leaf for leaf in leaves if leaf.requires_grad]
        self.extra_origins = [tensor for tensor in tensors if tensor.requires_grad]
        # Of each stage, when it first runs: its parameters and their versions, those that are trained, and what its graph
        # has in their places. Not all at once: the device would have to wait.
        self.parameters: List[List[torch.Tensor]] = [[]] * count
        self.parameter_versions: List[List[int]] = [[]] * count
        self.trainable: List[List[torch.Tensor]] = [[]] * count
        self.graph_leaves: List[List[torch.Tensor]] = [[]] * count
        self.known = [False] * count
        self.stand_ins = StandIns()
        self.shared: Dict[int, int] = {}
        # The stages that are run again for their backward alone: their first run leaves a graph that waits for its values.
        self.haunted: FrozenSet[int] = frozenset()
        self.ghosts: List[Optional[Ghost]] = [None] * count
        # Those of them that are filled in two parts, and what some keep in host memory of their first run.
        self.parted: FrozenSet[int] = frozenset()
        self.keepsakes: Any = None
        # Of stages that were studied: what a second run does with each call, for each level of what is kept.
        self.recipes: Dict[int, Dict[str, Recipe]] = {}
        # What went wrong in a second part, which runs within PyTorch's backward.
        self.raised: Optional[Exception] = None
        # Gradients that several stages add to. Each stage's graph starts from what is there already, so that the
        # sum is made in the order in which one graph would make it.
        self.carried: Dict[int, torch.Tensor] = {}
        # The gradients of each stage's own parameters, until somebody takes them.
        self.own_gradients: List[Optional[Gradient]] = [None] * count
        # How boundaries travel to stores and back.
        self.parcels: Any = None

    # What the executor asks for.

    def forward(self, number: int, boundary: Boundary) -> Boundary:
        index = number - 1
        stage = self.stage_list[index]
        if not self.known[index]:
            self._know(index)
        keepsakes = self.keepsakes
        if keepsakes is not None:
            keepsakes.reach(number)
        if number in self.haunted and not self.ran[index]:
            level = None if keepsakes is None else keepsakes.level(number)
            ghost, output = self.ghost(number, boundary, level, number in self.parted)
            self.ghosts[index] = ghost
            if level is not None:
                keepsakes.send(number, ghost)
            return output
        with torch.no_grad():
            tensors, spec = self._run(stage, stage.untaped, boundary, boundary.tensors)
        reached = bool(self.trainable[index]) or any(boundary.wanted) or bool(self.extra_leaves)
        wanted = []
        for tensor in tensors:
            # A tensor that only passes through needs a gradient if it did before.
            passed = [is_wanted for given, is_wanted in zip(boundary.tensors, boundary.wanted) if given is tensor]
            floats = tensor.is_floating_point() or tensor.is_complex()
            wanted.append(passed[0] if passed else reached and floats)
        return Boundary(tensors, spec, wanted)

    def tape(self, number: int, option: Optional[str], boundary: Boundary) -> Tuple[Any, Optional[Boundary]]:
        index = number - 1
        stage = self.stage_list[index]
        if not self.known[index]:
            self._know(index)
        if self.keepsakes is not None:
            self.keepsakes.reach(number)
        ghost = self.ghosts[index]
        if ghost is not None and (option is None or option == PARTS):
            self.ghosts[index] = None
            if self.keepsakes is not None:
                self.keepsakes.restore(number, ghost)
            if option == PARTS and ghost.cut is None:
                # Nothing to cut at: all of it is filled when it goes back, as it was measured.
                ghost.waits = boundary
            else:
                self.fill(number, ghost, boundary, option == PARTS)
            # Nobody reads the output: that is why there is a ghost.
            return ghost, None
        way = stage.way(option)
        if way is None:
            known = ", ".join(stage.ways) or "(none)"
            raise UnknownOption(number, stage.name, str(option), known)
        if option in PARTIAL:
            return self._partial(number, option, boundary)
        inputs, leaves = leaves_of(boundary)
        with torch.enable_grad(), self.stand_ins.within(stage.homes):
            outputs, spec = self._run(stage, way, boundary, leaves)
        self._check_captures(stage, outputs, [leaf for leaf in inputs if leaf is not None])
        output = Boundary([tensor.detach() for tensor in outputs], spec, [tensor.requires_grad for tensor in outputs])
        return Tape(inputs, outputs), output

    def ghost(
        self,
        number: int,
        boundary: Boundary,
        level: Optional[str] = None,
        parts: bool = False,
        values: bool = False,
    ) -> Tuple[Ghost, Boundary]:
        """Runs a stage and keeps its graph without the values, but for what it is told to keep."""
        stage, ghost = self.stage_list[number - 1], Ghost()
        recipe = None if level is None else self.recipes.get(number, {}).get(level)
        with torch.enable_grad(), self.stand_ins.within(stage.homes):
            inputs = ghost.begin(boundary.tensors, boundary.wanted)
            with ghost.noting(level, parts and recipe is None, values, recipe) as noting:
                outputs, spec = self._run(stage, noting.of(stage.block), boundary, inputs)
            ghost.finish(outputs)
        self._check_captures(stage, outputs, [] if ghost.start is None else [ghost.start])
        return ghost, Boundary([tensor.detach() for tensor in outputs], spec, ghost.wanted)

    def _partial(self, number: int, option: str, boundary: Boundary) -> Tuple[Ghost, Boundary]:
        """Runs a stage and keeps a part of its tape; the rest is filled in when it goes back, from its input."""
        if option != PARTS:
            ghost, output = self.ghost(number, boundary, option)
            ghost.waits = boundary
            return ghost, output
        ghost, output = self.ghost(number, boundary, parts=True, values=True)
        if ghost.cut is None:
            # No attention: there is nothing to cut at, and what is kept is what comes of running it again.
            ghost.waits = boundary
            return ghost, output
        self._split(number, ghost, boundary)
        ghost.holders.clear()
        return ghost, output

    def _split(self, number: int, ghost: Ghost, boundary: Boundary) -> None:
        ghost.split()
        if ghost.later is not None:
            ghost.later.run = lambda later: self.second_part(number, later, boundary)

    def second_part(self, number: int, later: Later, boundary: Boundary) -> None:
        """The backward of a stage in two parts has come to the second."""
        if self.keepsakes is not None:
            self.keepsakes.go_back(number)
        try:
            self._refill(number, later.filling(), boundary)
        except Exception as error:
            # PyTorch 1.13 makes an error of its own out of what is raised within its backward.
            self.raised = error
            raise

    def fill(self, number: int, ghost: Ghost, boundary: Boundary, parts: bool = False) -> None:
        """Runs a stage again, as far as its graph needs it."""
        filling = ghost.filling(parts)
        if filling.complete or ghost.end is None:
            return
        if ghost.later is not None:
            self._split(number, ghost, boundary)
        self._refill(number, filling, boundary)

    def _refill(self, number: int, filling: Filling, boundary: Boundary) -> None:
        stage = self.stage_list[number - 1]
        _, leaves = leaves_of(boundary)
        with torch.enable_grad(), self.stand_ins.within(stage.homes), filling:
            self._run(stage, filling.of(stage.block), boundary, leaves)
        if filling.differs is not None:
            raise StageChanged(number, stage.name, *filling.differs, of="what its backward reads")
        if not filling.complete:
            made = f"{filling.at} tensors", "more"
            raise StageChanged(number, stage.name, filling.at, made[1], made[0], of="what its backward reads")

    def backward(self, number: int, tape: Any, gradient: Gradient) -> Gradient:
        index = number - 1
        outputs: List[torch.Tensor] = []
        given: List[torch.Tensor] = []
        is_ghost = isinstance(tape, Ghost)
        if self.keepsakes is not None and not (is_ghost and tape.later is not None):
            self.keepsakes.go_back(number)
        if is_ghost:
            if tape.waits is not None:
                boundary, tape.waits = tape.waits, None
                self.fill(number, tape, boundary)
                del boundary
            incoming = [of_output for of_output, is_wanted in zip(gradient, tape.wanted) if is_wanted]
            if tape.end is not None and any(of_output is not None for of_output in incoming):
                tape.box.incoming = incoming
                outputs.append(tape.end)
                given.append(torch.empty_like(tape.end))
            del incoming
            wanted = [] if tape.start is None else [tape.start]
        else:
            for output, of_output in zip(tape.outputs, gradient):
                if of_output is not None and output.requires_grad:
                    outputs.append(output)
                    given.append(of_output)
            tape.outputs = []
            wanted = [leaf for leaf in tape.inputs if leaf is not None]
        # Nobody else holds on to these: what the graph has read is free.
        gradient.clear()
        own = self.graph_leaves[index]
        if not outputs:
            self.own_gradients[index] = [None] * len(own)
            return [None] * len(tape.input_wanted if is_ghost else tape.inputs)
        shared = self.shared
        if self.extra_leaves or shared:
            for leaf in (*self.extra_leaves, *own):
                carried = self.carried.pop(id(leaf), None)
                if carried is not None:
                    outputs.append(leaf)
                    given.append(carried)
        leaves = (*wanted, *self.extra_leaves, *own)
        try:
            found = _gradients(tuple(outputs), leaves, tuple(given)) if leaves else ()
        except Exception as error:
            if self.raised is None or self.raised is error:
                raise
            raise self.raised from None
        del outputs, given
        at = len(wanted)
        if is_ghost:
            outgoing, tape.box.outgoing = iter(tape.box.outgoing), ()
            of_inputs = [next(outgoing, None) if is_wanted else None for is_wanted in tape.input_wanted]
        else:
            of_wanted = iter(found[:at])
            of_inputs = [None if leaf is None else next(of_wanted) for leaf in tape.inputs]
        for leaf in self.extra_leaves:
            _carry(self.carried, leaf, found[at])
            at += 1
        of_own: Gradient = list(found[at:])
        if shared:
            for position, parameter in enumerate(self.trainable[index]):
                if id(parameter) in shared:
                    _carry(self.carried, own[position], of_own[position])
                    of_own[position] = None
        self.own_gradients[index] = of_own
        return of_inputs

    def know_all(self) -> None:
        """When the forward half is over: what concerns several stages."""
        if self.keepsakes is not None:
            self.keepsakes.turn(len(self.stage_list))
        for index, known in enumerate(self.known):
            if not known:
                self._know(index)
        self.shared = _shared(self.trainable)

    def _know(self, index: int) -> None:
        self.known[index] = True
        parameters = self.stage_list[index].parameters()
        self.parameters[index] = parameters
        self.parameter_versions[index] = [parameter._version for parameter in parameters]
        self.trainable[index] = [parameter for parameter in parameters if parameter.requires_grad]
        self.graph_leaves[index] = self.stand_ins.of(self.trainable[index])

    def _check_captures(self, stage: Stage, outputs: List[torch.Tensor], leaves: List[torch.Tensor]) -> None:
        # Once for each stage: it takes as long as a small stage.
        if not stage.looked_for_captures:
            check_captures(stage, outputs, leaves + self.extra_leaves + self.graph_leaves[stage.number - 1])
            stage.looked_for_captures = True

    def boundary_bytes(self, boundary: Boundary) -> int:
        return sum(trees.tensor_bytes(tensor) for tensor in boundary.tensors)

    def export(self, boundary: Boundary) -> Any:
        return self.parcels.export(boundary)

    def restore(self, number: int, parts: List[bytes]) -> Boundary:
        return self.parcels.restore(number, parts)

    def stage_name(self, number: int) -> str:
        return self.stage_list[number - 1].name

    def live_bytes(self) -> Optional[int]:
        return None

    def peak_bytes(self) -> Optional[int]:
        return None

    # How a stage is run.

    def _run(
        self, stage: Stage, way: Way, boundary: Boundary, tensors: List[torch.Tensor]
    ) -> Tuple[List[torch.Tensor], Tuple[Any, ...]]:
        index = stage.number - 1
        value = trees.unflatten(tensors, boundary.spec)
        versions = [tensor._version for tensor in tensors]
        try:
            if not self.ran[index]:
                output = self._first(index, stage, way, value)
            else:
                self._check_unchanged(index, stage, boundary)
                output = self._again(index, stage, way, value)
        except RuntimeError as error:
            # A leaf that needs a gradient refuses before it changes.
            if "leaf Variable that requires grad" in str(error) and "in-place" in str(error):
                raise InputChanged(stage.number, stage.name, 0) from error
            raise
        for position, (tensor, version) in enumerate(zip(tensors, versions)):
            if tensor._version != version:
                raise InputChanged(stage.number, stage.name, position)
        if stage.number < len(self.stage_list):
            output = self.call.hand_on(output)
        made, spec = trees.flatten(output)
        self._compare(index, stage, made)
        return made, spec

    def _first(self, index: int, stage: Stage, way: Way, value: Any) -> Any:
        self.draws.begin()
        start = stage.buffers.before_first_run()
        if self.autocast.enabled:
            torch.clear_autocast_cache()
        output = self.call.run(way, value)
        if self.autocast.enabled:
            torch.clear_autocast_cache()
        self.buffer_starts[index] = stage.buffers.after_first_run(start)
        self.draws.end(index)
        self.ran[index] = True
        return output

    def _again(self, index: int, stage: Stage, way: Way, value: Any) -> Any:
        start = self.buffer_starts[index]
        if self.draws.before[index] is None and start is None and not stage.buffers.norms and self.autocast.off():
            return self.call.run(way, value)
        with self.draws.replay(index), stage.buffers.stand_in(start), self.autocast.again():
            return self.call.run(way, value)

    def _check_unchanged(self, index: int, stage: Stage, boundary: Boundary) -> None:
        for position, version in enumerate(boundary.versions or ()):
            found = boundary.tensors[position]._version
            if found != version:
                raise KeptChanged(stage.number, stage.name, f"tensor {position} of its input", found, version)
        for parameter, version in zip(self.parameters[index], self.parameter_versions[index]):
            if parameter._version != version:
                raise KeptChanged(stage.number, stage.name, "a parameter", parameter._version, version)
        for position, (tensor, version) in enumerate(zip(self.extras, self.extra_versions)):
            if tensor._version != version:
                what = f"tensor {position} of its other arguments"
                raise KeptChanged(stage.number, stage.name, what, tensor._version, version)

    def _compare(self, index: int, stage: Stage, made: List[torch.Tensor]) -> None:
        seen = [trees.describe(tensor) for tensor in made]
        before = self.made[index]
        if before is None:
            self.made[index] = seen
        elif before != seen:
            if len(before) != len(seen):
                found, expected = f"{len(seen)} tensors", f"{len(before)}"
                raise StageChanged(stage.number, stage.name, min(len(before), len(seen)), expected, found)
            position = next(i for i, pair in enumerate(zip(before, seen)) if pair[0] != pair[1])
            forward, again = trees.in_words(before[position]), trees.in_words(seen[position])
            raise StageChanged(stage.number, stage.name, position, forward, again)


def leaves_of(boundary: Boundary) -> Tuple[List[Optional[torch.Tensor]], List[torch.Tensor]]:
    """The boundary as leaves of a graph: those that need a gradient, and all of them."""
    inputs: List[Optional[torch.Tensor]] = []
    leaves: List[torch.Tensor] = []
    for tensor, wanted in zip(boundary.tensors, boundary.wanted):
        leaf = tensor.detach()
        inputs.append(leaf.requires_grad_() if wanted else None)
        leaves.append(leaf)
    return inputs, leaves


def _gradients(
    outputs: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Sequence[Optional[torch.Tensor]]:
    """`torch.autograd.grad` without its checks, which take longer than a small graph: shapes are right by construction."""
    run = torch.autograd.Variable._execution_engine.run_backward
    return run(outputs, given, False, False, leaves, True, accumulate_grad=False)


def _carry(carried: Dict[int, torch.Tensor], leaf: torch.Tensor, gradient: Optional[torch.Tensor]) -> None:
    if gradient is not None:
        carried[id(leaf)] = gradient


def _shared(of_stages: List[List[torch.Tensor]]) -> Dict[int, int]:
    """The parameters that several stages have, each with the index of the first such stage."""
    first: Dict[int, int] = {}
    shared: Dict[int, int] = {}
    for index, parameters in enumerate(of_stages):
        for parameter in parameters:
            if first.setdefault(id(parameter), index) != index:
                shared[id(parameter)] = first[id(parameter)]
    return shared
