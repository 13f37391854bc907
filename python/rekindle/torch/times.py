"""How long stages take, as they do within a step.

Within a step the CPU is ahead of a CUDA device, and what the CPU does costs nothing. A stage by itself between two
synchronisations is another matter: there the device waits for the CPU. So the device is first given something else to do,
for as long as the CPU needs to say what is to be measured; events on the device then tell its own time. A stage that takes
the CPU longer than the device takes as long as the CPU does; of that the fastest run counts, because whatever else a machine
does only makes it slower.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from .arrange import Kept
from .engine import Boundary
from .keeping import PARTS
from .keepsakes import SMALL
from .recipes import Recipe
from .trees import tensor_bytes

#: What a device does in a second, at most: how long it sleeps need not be exact, only long enough.
CYCLES_PER_SECOND = 2_000_000_000


class Took(NamedTuple):
    """What something took, in nanoseconds: the median of the device, the CPU's fastest, the device's fastest and slowest."""

    device: int
    cpu: int
    fastest: int
    slowest: int


class Times(NamedTuple):
    """Of one kind of stage."""

    untaped: Took
    #: Forward and backward for each way to keep the tape.
    taped: Dict[Optional[str], Tuple[Took, Took]]
    #: The first run and the second where the first leaves a graph without its values; none where there is no such way.
    haunted: Optional[Tuple[Took, Took]]
    #: The same where the first run keeps results of costly calls, and how large these are.
    kept: Dict[str, Tuple[int, Took, Took]]
    #: What a second run does with each call, for those of them that know.
    recipes: Dict[str, Recipe]
    #: What the second part of a backward in two parts takes less than the first.
    room: int
    #: What a run with each kind of tape takes beyond it, where somebody counts.
    taped_extras: Dict[str, int]


class Found(NamedTuple):
    """What is known of stages beside their times."""

    #: Those that are better run again for their backward alone.
    haunted: List[int]
    #: What each may keep of its first run.
    kept: List[Dict[str, Kept]]
    #: Of each stage, what a second run does with each call at some of these levels.
    recipes: Dict[int, Dict[str, Recipe]]
    #: Of each that can go back in two parts, what the second takes less than the first.
    rooms: Dict[int, int]
    #: Of each, what a run with a tape takes beyond it, for each kind of tape.
    taped_extras: List[Dict[str, int]]
    #: Whether the CPU is ahead of the device, so that only the device's times count.
    is_ahead: bool


def add_times(engine: Any, boundary: Boundary, profile: Dict[str, Any], runs: int, around_ns: int = 0) -> Found:
    """Puts the times into a profile, of a step that takes ``around_ns`` of the device beside the region."""
    known: Dict[int, Tuple[Times, Boundary]] = {}
    of_stages: List[Times] = []
    for number in range(1, len(profile["stages"]) + 1):
        kind = engine.kind(number, boundary)
        if kind not in known:
            times = _times(engine, number, boundary, runs, profile["stages"][number - 1])
            known[kind] = times, engine.forward(number, boundary)
        times, boundary = known[kind]
        of_stages.append(times)
    # Over a whole step the CPU makes up for one stage what it loses with another.
    haunts = max(_step(of_stages, around_ns, haunted=True)) < max(_step(of_stages, around_ns, haunted=False))
    ahead = Ahead(of_stages, around_ns, haunts)
    # To follow every call takes the CPU time that it may not have.
    of_stages = [times._replace(**_followed(times, ahead)) for times in of_stages]
    time_of = ahead.time_of(None)
    haunted = []
    for number, (stage, times) in enumerate(zip(profile["stages"], of_stages), 1):
        forward, backward = times.taped[None]
        stage["backward_ns"] = time_of(backward)
        # A plan runs a stage without and with its tape about as often.
        stage["forward_ns"] = (time_of(times.untaped) + time_of(forward)) // 2
        for option in stage.get("options", ()):
            pair = times.taped[option["name"]]
            of_option = ahead.time_of(option["name"])
            option["forward_ns"] = _not_below(pair[0], forward, stage["forward_ns"], of_option)
            option["backward_ns"] = _not_below(pair[1], backward, stage["backward_ns"], of_option)
        if haunts and times.haunted is not None:
            haunted.append(number)
            first, second = times.haunted
            saved = time_of(times.untaped) + time_of(forward) - time_of(first) - time_of(second)
            forwards = [stage["forward_ns"], *(option["forward_ns"] for option in stage.get("options", ()))]
            # No more than any forward takes, and never all of it.
            saved = min([saved, *(forward_ns * 9 // 10 for forward_ns in forwards)])
            if saved > 0:
                stage["unread_ns"] = saved
    kept = [
        {level: Kept(size, *map(ahead.time_of(level, kept=True), pair)) for level, (size, *pair) in times.kept.items()}
        for times in of_stages
    ]
    rooms = {number: times.room for number, times in enumerate(of_stages, 1) if times.room}
    recipes = {number: times.recipes for number, times in enumerate(of_stages, 1) if times.recipes}
    return Found(haunted, kept, recipes, rooms, [times.taped_extras for times in of_stages], ahead.usually)


def _step(of_stages: List[Times], around_ns: int, haunted: bool) -> Tuple[int, int]:
    """What a step takes the device and the CPU in which every stage is run again."""
    device, cpu = around_ns, 0
    for times in of_stages:
        forward, backward = times.taped[None]
        first, second = times.haunted if haunted and times.haunted is not None else (times.untaped, forward)
        for took in (first, second, backward):
            device += took.device
            cpu += took.cpu
    return device, cpu


class Ahead:
    """Whether the CPU is ahead of the device over a whole step in which every stage goes one way: what it loses with one stage it then
    makes up for with another, and only the device's times count. Ways that take it longer count as long as they take it."""

    def __init__(self, of_stages: List[Times], around_ns: int, haunts: bool):
        self.of_stages = of_stages
        self.device, cpu = _step(of_stages, around_ns, haunted=haunts)
        self.usually = cpu < AHEAD * self.device
        self._known: Dict[Tuple[str, bool], bool] = {}

    def with_way(self, name: str, kept: bool = False) -> bool:
        """With an option's name, or, ``kept``, with that of a level of what waits in host memory."""
        if (name, kept) not in self._known:
            cpu = 0
            for times in self.of_stages:
                forward, backward = times.taped[None]
                again = (*(times.haunted or (times.untaped, forward)), backward)
                tooks: Sequence[Took] = again
                if kept:
                    tooks = (*times.kept[name][1:], backward) if name in times.kept else again
                else:
                    tooks = times.taped.get(name, again)
                cpu += sum(took.cpu for took in tooks)
            # Against what the device usually takes: a plan has some stages of a way that saves it time, and not all.
            self._known[name, kept] = self.usually and cpu < AHEAD * self.device
        return self._known[name, kept]

    def time_of(self, name: Optional[str], kept: bool = False) -> Callable[[Took], int]:
        is_ahead = self.usually if name is None else self.with_way(name, kept)
        return _device_time if is_ahead else _time


def _followed(times: Times, ahead: Ahead) -> Dict[str, Any]:
    """Of what stages may keep: levels with a recipe only where the CPU stays ahead with them, or is behind anyway."""
    left_out = {level for level in times.recipes if ahead.usually and not ahead.with_way(level, kept=True)}
    kept = {level: what for level, what in times.kept.items() if level not in left_out}
    return {"kept": kept, "recipes": {level: recipe for level, recipe in times.recipes.items() if level not in left_out}}


#: The part of a step the CPU may take to count as ahead. Within a step it has more to do than is measured here.
AHEAD = 0.7


def _device_time(took: Took) -> int:
    return took.device


def _time(took: Took) -> int:
    return max(took.device, took.cpu)


def _not_below(took: Took, usual: Took, usual_ns: int, time_of: Callable[[Took], int]) -> int:
    """No less than the usual way, unless each run was faster than every run of that. Of two ways that take the same time, the
    cheaper by chance would be in every plan."""
    return time_of(took) if took.slowest < usual.fastest else max(time_of(took), usual_ns)


def _times(engine: Any, number: int, boundary: Boundary, runs: int, sizes: Dict[str, Any]) -> Times:
    clock = Clock(engine, runs)
    untaped = clock.time(lambda: None, lambda _: engine.forward(number, boundary))
    taped: Dict[Optional[str], Tuple[Took, Took]] = {}
    ways: List[Optional[str]] = [None, *engine.options(number)]
    for way in ways:
        forward = clock.time(lambda: None, lambda _: engine.tape(number, way, boundary))

        def prepare() -> Any:
            tape, made = engine.tape(number, way, boundary)
            return tape, engine.some_gradient(made)

        taped[way] = forward, clock.time(prepare, lambda ready: engine.backward(number, *ready))
    haunted = None
    if number in engine.hauntable:
        first = clock.time(lambda: None, lambda _: engine.ghost(number, boundary))
        second = clock.time(
            lambda: engine.ghost(number, boundary)[0], lambda ghost: engine.fill(number, ghost, boundary)
        )
        haunted = first, second
    engine.recipes[number] = recipes = engine.study(number, boundary)
    levels = [*engine.levels, *recipes] if number in engine.hauntable else []
    kept = {level: _kept(engine, clock, number, boundary, level) for level in levels}
    room = engine.room_of_second_part(number, boundary) if PARTS in ways else 0
    return Times(untaped, taped, haunted, kept, recipes, room, engine.taped_extras(number, boundary, sizes))


def _kept(engine: Any, clock: "Clock", number: int, boundary: Boundary, level: str) -> Tuple[int, Took, Took]:
    """Without the copies, which go on beside it."""
    ghost = engine.ghost(number, boundary, level)[0]
    sizes = [tensor_bytes(piece) for piece in ghost.pieces.tensors if piece is not None]
    del ghost
    first = clock.time(lambda: None, lambda _: engine.ghost(number, boundary, level))
    second = clock.time(
        lambda: engine.ghost(number, boundary, level)[0], lambda ghost: engine.fill(number, ghost, boundary)
    )
    return sum(size for size in sizes if size >= SMALL), first, second


class Clock:
    """Times what an engine does."""

    def __init__(self, engine: Any, runs: int):
        self.engine, self.runs = engine, runs
        self.on_cuda = engine.device.type == "cuda"
        self.asleep = 0.002

    def time(self, prepare: Callable[[], Any], run: Callable[[Any], Any]) -> Took:
        """What several runs took."""
        of_device, of_cpu = [], []
        for number in range(self.runs + 2):
            ready = prepare()
            device, cpu = self._once(run, ready)
            del ready
            self.engine.forget_gradients()
            # The first two warm up, and find out how long the CPU takes.
            if number >= 2:
                of_device.append(device)
                of_cpu.append(cpu)
        device = statistics.median(of_device)
        return Took(int(device), int(min(of_cpu)), int(min(of_device)), int(max(of_device)))

    def _once(self, run: Callable[[Any], Any], ready: Any) -> Tuple[float, float]:
        if not self.on_cuda:
            start = time.perf_counter_ns()
            run(ready)
            took = time.perf_counter_ns() - start
            return took, took
        self.engine.finish()
        begins, ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(self.asleep * CYCLES_PER_SECOND))
        begins.record()
        start = time.perf_counter_ns()
        made = run(ready)
        said = time.perf_counter_ns() - start
        ends.record()
        self.engine.finish()
        del made
        self.asleep = max(self.asleep, 2e-9 * said)
        return begins.elapsed_time(ends) * 1e6, said
