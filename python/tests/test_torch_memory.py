"""What a region really holds, held against what its plan predicts."""

from __future__ import annotations

from typing import Any, Dict

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
from rekindle.torch import trees
from torch import nn
from torch_models import Mlp

torch.set_num_threads(1)


def live_peak(region: Any, x: Any) -> int:
    """The most bytes of saved tensors and boundaries alive at once in one step, each piece of memory once."""
    known = {trees.storage_key(p) for stage in region.stages for p in stage.block.parameters()}
    pieces: Dict[int, list] = {}
    now, most = 0, 0

    def grow(tensor: Any) -> int:
        nonlocal now, most
        key = trees.storage_key(tensor)
        if key in known:
            return 0
        entry = pieces.setdefault(key, [0, trees.storage_bytes(tensor)])
        entry[0] += 1
        if entry[0] == 1:
            now += entry[1]
            most = max(most, now)
        return key

    def shrink(key: int) -> None:
        nonlocal now
        entry = pieces.get(key)
        if entry is None:
            return
        entry[0] -= 1
        if entry[0] == 0:
            now -= entry[1]
            del pieces[key]

    class Packed:
        """A saved tensor: gone when the graph lets go of it."""

        def __init__(self, tensor: Any):
            self.tensor, self.key = tensor.detach(), grow(tensor)

        def __del__(self) -> None:
            if self.key:
                shrink(self.key)

    from rekindle.torch import engine as engine_module

    class CountedBoundary(engine_module.Boundary):
        __slots__ = ("keys",)

        def __init__(self, tensors: Any, spec: Any, wanted: Any):
            super().__init__(tensors, spec, wanted)
            self.keys = [grow(tensor) for tensor in tensors]

        def __del__(self) -> None:
            for key in self.keys:
                if key:
                    shrink(key)

    class CountedTape(engine_module.Tape):
        """A tape includes its stage's output and holds on to its input."""

        __slots__ = ("keys",)

        def __init__(self, inputs: Any, outputs: Any):
            super().__init__(inputs, outputs)
            self.keys = [grow(t) for t in [*outputs, *[leaf for leaf in inputs if leaf is not None]]]

        def __del__(self) -> None:
            for key in self.keys:
                if key:
                    shrink(key)

    from rekindle.torch import ghosts as ghosts_module
    from rekindle.torch import node as node_module

    class CountedHolder(ghosts_module.Holder):
        """The place of a value in a graph that waits for it."""

        __slots__ = ("inner", "key")

        def __init__(self, like: Any):
            self.key = 0
            super().__init__(like)

        @property
        def value(self) -> Any:
            return self.inner

        @value.setter
        def value(self, tensor: Any) -> None:
            self.inner = tensor
            if tensor is not None:
                self.key = grow(tensor)

        def __del__(self) -> None:
            if self.key:
                shrink(self.key)

    kept_holder = ghosts_module.Holder
    ghosts_module.Holder = CountedHolder
    kept = engine_module.Boundary, engine_module.Tape, node_module.Boundary
    engine_module.Boundary = node_module.Boundary = CountedBoundary
    engine_module.Tape = CountedTape
    try:
        with torch.autograd.graph.saved_tensors_hooks(Packed, lambda packed: packed.tensor):
            output = region(x)
        forward = most
        with torch.autograd.graph.saved_tensors_hooks(Packed, lambda packed: packed.tensor):
            output.sum().backward()
        del output
    finally:
        engine_module.Boundary, engine_module.Tape, node_module.Boundary = kept
        ghosts_module.Holder = kept_holder
    assert now == 0, "something of the step is still held"
    assert forward <= most
    return most


@pytest.mark.parametrize("part", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_no_more_is_held_than_predicted(part: float) -> None:
    torch.manual_seed(0)
    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16), nn.Tanh()) for _ in range(8)])
    # Without the parameters' gradients, which are not counted here.
    x = torch.randn(256, 16, requires_grad=True)
    measured = rekindle.torch.checkpointed(blocks, budget="1GiB", runs=1, options=[])
    measured(x).sum().backward()
    stages = [stage_without_gradients(stage) for stage in measured.profile.stages]
    profile = measured.profile.with_stages(stages)
    most = rekindle.plan(profile, solver="store-all").predicted.peak_bytes
    least = rekindle.smallest_budget(profile)
    budget = int(least + (most - least) * part)
    region = rekindle.torch.checkpointed(blocks, budget=budget, profile=profile, options=[])
    region(x)
    predicted = region.plan.predicted.peak_bytes
    found = live_peak(region, x)
    assert part == 1.0 or region.current.haunted
    # The simulator counts the gradient of a boundary as well, which is no saved tensor.
    gradient = 256 * 16 * 4
    assert predicted - gradient <= found <= predicted <= budget


def stage_without_gradients(stage: Any) -> Any:
    import json

    values = json.loads(rekindle.Profile("m", "d", 1 << 20, [stage]).to_json())["stages"][0]
    values.pop("parameter_gradient_bytes", None)
    return rekindle.StageProfile(**values)


def test_tape_sizes_are_what_autograd_saves() -> None:
    """Against a sum made by hand."""
    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(3)])
    x = torch.randn(8, 16, requires_grad=True)
    region = rekindle.torch.checkpointed(blocks, budget="1GiB", runs=1)
    region(x).sum().backward()
    tanh, output = 8 * 64 * 4, 8 * 16 * 4
    assert [stage.tape_bytes for stage in region.profile.stages] == [tanh + output] * 3
    assert [stage.output_bytes for stage in region.profile.stages] == [output] * 3
    weights = (16 * 64 + 64 + 64 * 16 + 16) * 4
    assert [stage.parameter_gradient_bytes for stage in region.profile.stages] == [weights] * 3


def test_gradients_that_are_there_already_take_nothing_more() -> None:
    blocks = nn.Sequential(*[nn.Linear(16, 16) for _ in range(3)])
    x = torch.randn(8, 16)
    blocks(x).sum().backward()
    region = rekindle.torch.checkpointed(blocks, budget="1GiB", runs=1)
    region(x).sum().backward()
    assert [stage.parameter_gradient_bytes for stage in region.profile.stages] == [0] * 3


def test_what_is_kept_is_what_the_plan_keeps() -> None:
    blocks = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(6)])
    region = rekindle.torch.checkpointed(blocks, strategy="every-2")
    output = region(torch.randn(3, 16, requires_grad=True))
    # The node of the last stage is what carries the step.
    assert output.grad_fn.step.executor.kept() == ([5, 6], [0, 2])


def test_every_shape_has_a_plan_of_its_own() -> None:
    region = rekindle.torch.checkpointed(Mlp().blocks, budget="1GiB", runs=1)
    for rows in (4, 8, 4):
        region.zero_grad(set_to_none=True)
        region(torch.randn(rows, 32)).sum().backward()
    assert len(region.planned) == 2
    first, second = region.planned.values()
    assert second.plan.predicted.peak_bytes > first.plan.predicted.peak_bytes


def test_autocast_has_a_plan_of_its_own() -> None:
    """On the CPU, too: only CUDA's was asked for once."""
    region, x = rekindle.torch.checkpointed(Mlp().blocks, budget="1GiB", runs=1), torch.randn(4, 32)
    for on in (False, True, False, True):
        region.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            region(x).sum().backward()
    assert len(region.planned) == 2
    without, under = region.planned.values()
    assert without.plan.predicted.peak_bytes != under.plan.predicted.peak_bytes


@pytest.mark.parametrize("group", [1, 3])
def test_blocks_that_train_have_another_plan_than_those_that_do_not(group: int) -> None:
    blocks, x = Mlp().blocks, torch.randn(4, 32)
    region = rekindle.torch.checkpointed(blocks, budget="1GiB", runs=1, group=group)
    for trains in (True, False, True):
        # Not the first one, of which alone it was asked.
        blocks[4].train(trains)
        region.zero_grad(set_to_none=True)
        region(x).sum().backward()
    assert len(region.planned) == 2
