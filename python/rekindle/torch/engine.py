"""The engine: runs, tapes and goes back through the stages of a region, as the executor says.

A boundary is a list of tensors without a graph. A tape is a graph of one stage: the stage's input as leaves, and its
output. A gradient is a list with a tensor or ``None`` for each tensor of a boundary.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from . import trees
from .autocast_state import Autocast
from .captures import check_captures
from .errors import InputChanged, KeptChanged, StageChanged, UnknownOption
from .random_state import Draws, Generators
from .stand_ins import StandIns
from .stage import Stage, Way
from .wiring import Call

Gradient = List[Optional[torch.Tensor]]


class Boundary:
    """The tensors between two stages."""

    __slots__ = ("tensors", "spec", "wanted", "versions")

    def __init__(self, tensors: List[torch.Tensor], spec: tuple, wanted: Sequence[bool]):
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
        self.made: List[Optional[List[tuple]]] = [None] * count
        self.buffer_starts: list = [None] * count
        # What is the same for all stages: with leaves of its own where it needs a gradient.
        tensors, spec = trees.flatten(call.extras())
        leaves = [tensor.detach().requires_grad_() if tensor.requires_grad else tensor for tensor in tensors]
        self.call = call.with_extras(trees.unflatten(leaves, spec)) if tensors else call
        self.extras = tensors
        self.extra_versions = [tensor._version for tensor in tensors]
        self.extra_leaves = [leaf for leaf in leaves if leaf.requires_grad]
        self.extra_origins = [tensor for tensor in tensors if tensor.requires_grad]
        self.parameters = [stage.parameters() for stage in stages]
        self.parameter_versions = [[p._version for p in parameters] for parameters in self.parameters]
        self.trainable = [[p for p in parameters if p.requires_grad] for parameters in self.parameters]
        self.shared = _shared(self.trainable)
        # What the graphs of stages have in the places of these parameters: themselves, unless they have hooks.
        self.stand_ins = StandIns(self.trainable)
        self.graph_leaves = [self.stand_ins.of(parameters) for parameters in self.trainable]
        # Gradients that several stages add to. Each stage's graph starts from what is there already, so that the
        # sum is made in the order in which one graph would make it.
        self.carried: Dict[int, torch.Tensor] = {}
        # The gradients of each stage's own parameters, until somebody takes them.
        self.own_gradients: List[Optional[Gradient]] = [None] * count
        # How boundaries travel to stores and back.
        self.parcels: Any = None

    # What the executor asks for.

    def forward(self, number: int, boundary: Boundary) -> Boundary:
        stage = self.stage_list[number - 1]
        with torch.no_grad():
            tensors, spec = self._run(stage, stage.untaped, boundary, boundary.tensors)
        reached = bool(self.trainable[number - 1]) or any(boundary.wanted) or bool(self.extra_leaves)
        given = {id(tensor): wanted for tensor, wanted in zip(boundary.tensors, boundary.wanted)}
        # A tensor that only passes through needs a gradient if it did before.
        wanted = [
            given.get(id(tensor), reached and (tensor.is_floating_point() or tensor.is_complex())) for tensor in tensors
        ]
        return Boundary(tensors, spec, wanted)

    def tape(self, number: int, option: Optional[str], boundary: Boundary) -> Tuple[Tape, Boundary]:
        stage = self.stage_list[number - 1]
        way = stage.way(option)
        if way is None:
            known = ", ".join(stage.ways) or "(none)"
            raise UnknownOption(number, stage.name, str(option), known)
        inputs: List[Optional[torch.Tensor]] = []
        leaves: List[torch.Tensor] = []
        for tensor, wanted in zip(boundary.tensors, boundary.wanted):
            leaf = tensor.detach()
            inputs.append(leaf.requires_grad_() if wanted else None)
            leaves.append(leaf)
        with torch.enable_grad(), self.stand_ins.within(stage.homes):
            outputs, spec = self._run(stage, way, boundary, leaves)
        if not stage.looked_for_captures:
            known = [leaf for leaf in inputs if leaf is not None] + self.extra_leaves + self.graph_leaves[number - 1]
            check_captures(stage, outputs, known)
            stage.looked_for_captures = True
        output = Boundary([tensor.detach() for tensor in outputs], spec, [tensor.requires_grad for tensor in outputs])
        return Tape(inputs, outputs), output

    def backward(self, number: int, tape: Tape, gradient: Gradient) -> Gradient:
        index = number - 1
        outputs: List[torch.Tensor] = []
        given: List[torch.Tensor] = []
        for output, of_output in zip(tape.outputs, gradient):
            if of_output is not None and output.requires_grad:
                outputs.append(output)
                given.append(of_output)
        # Nobody else holds on to these: what the graph has read is free.
        gradient.clear()
        tape.outputs = []
        wanted = [leaf for leaf in tape.inputs if leaf is not None]
        own = self.graph_leaves[index]
        if not outputs:
            self.own_gradients[index] = [None] * len(own)
            return [None] * len(tape.inputs)
        leaves = wanted + self.extra_leaves + own
        shared = self.shared
        if self.extra_leaves or shared:
            for leaf in leaves[len(wanted) :]:
                carried = self.carried.pop(id(leaf), None)
                if carried is not None:
                    outputs.append(leaf)
                    given.append(carried)
        found = iter(_gradients(outputs, leaves, given)) if leaves else iter(())
        del outputs, given
        of_inputs = [None if leaf is None else next(found) for leaf in tape.inputs]
        for leaf in self.extra_leaves:
            _carry(self.carried, leaf, next(found))
        of_own: Gradient = []
        for parameter, leaf in zip(self.trainable[index], own):
            of_parameter = next(found)
            if shared and id(parameter) in shared:
                _carry(self.carried, leaf, of_parameter)
                of_parameter = None
            of_own.append(of_parameter)
        self.own_gradients[index] = of_own
        return of_inputs

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
    ) -> Tuple[List[torch.Tensor], tuple]:
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
        with self.draws.replay(index), stage.buffers.stand_in(self.buffer_starts[index]), self.autocast.again():
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


def _gradients(
    outputs: List[torch.Tensor], leaves: List[torch.Tensor], given: List[torch.Tensor]
) -> Sequence[Optional[torch.Tensor]]:
    return torch.autograd.grad(outputs, leaves, given, allow_unused=True)


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
