"""How long stages take, as they do within a step.

Within a step the CPU is ahead of a CUDA device, and what the CPU does costs nothing. A stage by itself between two
synchronisations is another matter: there the device waits for the CPU. So the device is first given something else to do,
for as long as the CPU needs to say what is to be measured; events on the device then tell its own time. A stage that takes
the CPU longer than the device takes as long as the CPU does.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from .engine import Boundary

#: What a device does in a second, at most: how long it sleeps need not be exact, only long enough.
CYCLES_PER_SECOND = 2_000_000_000


class Times(NamedTuple):
    """Of one kind of stage, in nanoseconds."""

    untaped: int
    #: Forward and backward for each way to keep the tape.
    taped: Dict[Optional[str], Tuple[int, int]]
    #: The first run and the second where the first leaves a graph without its values; none where there is no such way.
    haunted: Optional[Tuple[int, int]]


def add_times(engine: Any, boundary: Boundary, profile: Dict[str, Any], runs: int) -> List[int]:
    """Puts the times into a profile. Gives the stages that are better run again for their backward alone."""
    known: Dict[int, Tuple[Times, Boundary]] = {}
    haunted = []
    for number, stage in enumerate(profile["stages"], 1):
        kind = engine.kind(number, boundary)
        if kind not in known:
            known[kind] = _times(engine, number, boundary, runs), engine.forward(number, boundary)
        times, boundary = known[kind]
        forward, stage["backward_ns"] = times.taped[None]
        # A plan runs a stage without and with its tape about as often.
        stage["forward_ns"] = (times.untaped + forward) // 2
        for option in stage.get("options", ()):
            option["forward_ns"], option["backward_ns"] = times.taped[option["name"]]
        if times.haunted is not None:
            saved = times.untaped + forward - sum(times.haunted)
            if saved > 0:
                haunted.append(number)
                forwards = [stage["forward_ns"], *(option["forward_ns"] for option in stage.get("options", ()))]
                # No more than any forward takes, and never all of it.
                stage["unread_ns"] = min([saved, *(forward * 9 // 10 for forward in forwards)])
    return haunted


def _times(engine: Any, number: int, boundary: Boundary, runs: int) -> Times:
    clock = Clock(engine, runs)
    untaped = clock.median(lambda: None, lambda _: engine.forward(number, boundary))
    taped: Dict[Optional[str], Tuple[int, int]] = {}
    ways: List[Optional[str]] = [None, *engine.options(number)]
    for way in ways:
        forward = clock.median(lambda: None, lambda _: engine.tape(number, way, boundary))

        def prepare() -> Any:
            tape, made = engine.tape(number, way, boundary)
            return tape, engine.some_gradient(made)

        taped[way] = forward, clock.median(prepare, lambda ready: engine.backward(number, *ready))
    haunted = None
    if number in engine.hauntable:
        first = clock.median(lambda: None, lambda _: engine.ghost(number, boundary))
        second = clock.median(
            lambda: engine.ghost(number, boundary)[0], lambda ghost: engine.fill(number, ghost, boundary)
        )
        haunted = first, second
    return Times(untaped, taped, haunted)


class Clock:
    """Times what an engine does."""

    def __init__(self, engine: Any, runs: int):
        self.engine, self.runs = engine, runs
        self.on_cuda = engine.device.type == "cuda"
        self.asleep = 0.002

    def median(self, prepare: Callable[[], Any], run: Callable[[Any], Any]) -> int:
        """The median of several runs in nanoseconds."""
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
        return int(max(statistics.median(of_device), statistics.median(of_cpu)))

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
