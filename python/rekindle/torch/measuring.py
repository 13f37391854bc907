"""Measures the stages of a region: their times, and the memory they take.

On CUDA the memory is what PyTorch's allocator says is in use. On the CPU nobody knows that: tapes are what autograd saves
(`saved_sizes`), and workspace is not known.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

import torch

from rekindle import _core

from . import trees
from .engine import Boundary, Engine, Gradient, leaves_of
from .arrange import extra_name, level_name
from .keeping import PARTS
from .random_state import Generators
from .recipes import DeviceStudy, Recipe, Study, levels_of, with_times
from .saved_sizes import add_saved_sizes
from .stage import Stage, Way
from .times import add_times
from .wiring import FIRST, Call

#: How often each kind of stage runs; the median counts.
RUNS = 5

#: How often the calls of a stage are timed; the fastest counts.
STUDIES = 3

#: What a device does meanwhile, in cycles: some ten milliseconds.
SLEEP = 40_000_000


class MeasuringEngine(Engine):
    """An engine of which no run leaves a trace: as if everything had run before."""

    def __init__(
        self,
        stages: List[Stage],
        call: Call,
        generators: Generators,
        device: torch.device,
        hauntable: FrozenSet[int] = frozenset(),
        levels: Sequence[str] = (),
    ):
        super().__init__(stages, call, generators)
        self.device = device
        self.ran = [True] * len(stages)
        self.know_all()
        #: The stages whose first run may leave a graph without its values.
        self.hauntable = hauntable
        #: What stages could keep of their first run in host memory.
        self.levels = levels
        self._first_part: Optional[int] = None
        self._looks = False

    def _again(self, index: int, stage: Stage, way: Way, value: Any) -> Any:
        # Each time with new random numbers: they take their time, too.
        if not stage.buffers.looked:
            with stage.buffers.look(), self.autocast.again():
                return self.call.run(way, value)
        start = [(owner, owner[0][owner[1]]) for owner in stage.buffers.changing]
        with stage.buffers.stand_in(start), self.autocast.again():
            return self.call.run(way, value)

    def stages(self) -> int:
        return len(self.stage_list)

    def kind(self, number: int, boundary: Boundary) -> int:
        """The same for stages of the same code and sizes."""
        stage = self.stage_list[number - 1]
        words = [repr(type(stage.block)), repr(stage.block), str(stage.block.training), ",".join(stage.ways)]
        words += [f"{trees.in_words(trees.describe(p))} {p.requires_grad}" for p in self.parameters[number - 1]]
        words += [trees.in_words(trees.describe(t)) for t in boundary.tensors] + [str(list(boundary.wanted))]
        # The last stage hands all of its output on, the others what the next one takes.
        words.append(str(self.call.wiring == FIRST and number == len(self.stage_list)))
        return int.from_bytes(hashlib.sha256("\n".join(words).encode()).digest()[:7], "little")

    def options(self, number: int) -> List[str]:
        return list(self.stage_list[number - 1].ways)

    def parameter_gradient_bytes(self, number: int) -> int:
        """What its backward leaves. A gradient that is added to one that is there is gone soon."""
        index = number - 1
        later = {id(p) for parameters in self.trainable[index + 1 :] for p in parameters}
        own = [p for p in self.trainable[index] if id(p) not in later and p.grad is None]
        return sum(trees.tensor_bytes(p) for p in own)

    def some_gradient(self, boundary: Boundary) -> Gradient:
        pairs = zip(boundary.tensors, boundary.wanted)
        return [torch.ones_like(tensor) if wanted else None for tensor, wanted in pairs]

    def forget_gradients(self) -> None:
        self.own_gradients = [None] * len(self.stage_list)
        self.carried.clear()

    def room_of_second_part(self, number: int, boundary: Boundary) -> int:
        """How much less a backward in two parts takes at the worst moment of its second part than at that of its first."""
        if self.device.type != "cuda":
            return 0
        tape, made = self.tape(number, PARTS, boundary)
        assert made is not None, "a first run has an output"
        gradient = self.some_gradient(made)
        del made
        self.finish()
        self.peak_bytes()
        self._looks, self._first_part = True, None
        self.backward(number, tape, gradient)
        self._looks = False
        self.finish()
        second = self.peak_bytes() or 0
        self.forget_gradients()
        return 0 if self._first_part is None else max(self._first_part - second, 0)

    def study(self, number: int, boundary: Boundary) -> Dict[str, Recipe]:
        """What a second run of a stage may leave out, by the names of levels that keep more and more of a first run."""
        if not self.levels or number not in self.hauntable or not self.autocast.off():
            return {}
        stage = self.stage_list[number - 1]
        _, leaves = leaves_of(boundary)
        outside = [*leaves, *self.extras, *stage.block.parameters(), *stage.block.buffers(), *self.graph_leaves[number - 1]]
        # What is drawn is looked for in the first run alone: that takes time, and the others are timed.
        studies = [Study(outside, Generators([self.device]))]
        timed = DeviceStudy if self.device.type == "cuda" else Study
        studies += [timed(outside) for _ in range(STUDIES)]
        for study in studies:
            if study.generators is None and self.device.type == "cuda":
                # Something else to do for the device, for as long as the CPU needs to say what is to be timed.
                torch.cuda._sleep(SLEEP)
            with torch.enable_grad(), self.stand_ins.within(stage.homes):
                self._run(stage, study.of(stage.block), boundary, leaves)
            self.finish()
            study.end()
            if study.why is not None:
                return {}
        calls = studies[0].calls
        if not with_times(calls, [study.calls for study in studies[1:]]):
            return {}
        recipes = levels_of(calls, studies[0].saved)
        return {level_name(count): recipe for count, recipe in enumerate(recipes, 1)}

    def taped_extras(self, number: int, boundary: Boundary, sizes: Dict[str, Any]) -> Dict[str, int]:
        """What a run with each kind of tape takes at its worst moment beyond input and tape, also a second run that fills a
        graph. The stage's own tape is under an empty name; second runs where something is kept are under the way and what is kept."""
        if self.device.type != "cuda":
            return {}
        ways: List[Tuple[Optional[str], int]] = [(None, sizes["tape_bytes"])]
        ways += [(option["name"], option["tape_bytes"]) for option in sizes.get("options", ())]
        passed, most = sizes.get("passed_bytes", 0), {}
        for way, size in ways:
            most[way or ""] = max(self._peak_of(lambda: self.tape(number, way, boundary)) + passed - size, 0)
        if number in self.hauntable:
            recipes = self.recipes.get(number, {})
            for level in (None, *self.levels, *recipes):
                # One with a recipe is filled at once.
                for way, size in [pair for pair in ways if pair[0] in ((None,) if level in recipes else (None, PARTS))]:
                    before = self.live_bytes() or 0
                    ghost = self.ghost(number, boundary, level, way == PARTS)[0]
                    held = (self.live_bytes() or 0) - before
                    peak = self._peak_of(lambda: self.fill(number, ghost, boundary, way == PARTS))
                    name = extra_name(way, level)
                    most[name] = max(most.get(name, 0), held + peak + passed - size)
                    del ghost
        return most

    def _peak_of(self, run: Callable[[], Any]) -> int:
        """The most that is there while something runs, beside what was there."""
        self.finish()
        self.peak_bytes()
        before = self.live_bytes() or 0
        made = run()
        self.finish()
        peak = self.peak_bytes() or 0
        del made
        return max(peak - before, 0)

    def second_part(self, number: int, later: Any, boundary: Boundary) -> None:
        if self._looks:
            self._first_part = self.peak_bytes()
        super().second_part(number, later, boundary)

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def live_bytes(self) -> Optional[int]:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None

    def peak_bytes(self) -> Optional[int]:
        if self.device.type != "cuda":
            return None
        peak = torch.cuda.max_memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak


def measure(
    stages: List[Stage],
    call: Call,
    tensors: List[torch.Tensor],
    spec: Tuple[Any, ...],
    model: str,
    runs: int = RUNS,
    options: bool = True,
    progress: Optional[Callable[[int, str], None]] = None,
    hauntable: FrozenSet[int] = frozenset(),
    around_ns: int = 0,
    levels: Sequence[str] = (),
) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The profile of a region's stages, as a dictionary, and what is known of the measurement."""
    device = tensors[0].device
    generators = Generators([device])
    state = generators.state()
    engine = MeasuringEngine(stages, call, generators, device, hauntable, levels)
    boundary = Boundary([t.detach() for t in tensors], spec, [t.requires_grad for t in tensors])
    try:
        # Sizes; times are measured as a step has them.
        text, sized, _, kinds = _core.measure(engine, boundary, model, device_name(device), 1, options, progress)
        profile = json.loads(text)
        if not sized:
            add_saved_sizes(engine, boundary, profile)
        found = add_times(engine, boundary, profile, runs, around_ns)
    finally:
        generators.restore(state)
    known: Dict[str, Any] = {"sized": "allocator" if sized else "saved tensors", "kinds": kinds, "runs": runs}
    known.update(haunted=found.haunted, kept=found.kept, rooms=found.rooms, taped_extras=found.taped_extras)
    known["recipes"], known["is_ahead"] = found.recipes, found.is_ahead
    return profile, known


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
