"""How long stages take on a CUDA device, as they do within a step.

Within a step the CPU is ahead of the device, and what the CPU does costs nothing. A stage by itself between two
synchronisations is another matter: there the device waits for the CPU. So the device is first given something else to do,
for as long as the CPU needs to say what is to be measured; events on the device then tell its own time. A stage that takes
the CPU longer than the device takes as long as the CPU does.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .engine import Boundary

#: What a device does in a second, at most: how long it sleeps need not be exact, only long enough.
CYCLES_PER_SECOND = 2_000_000_000


def add_device_times(engine: Any, boundary: Boundary, profile: Dict[str, Any], runs: int) -> None:
    """Puts the times of the device into a profile that has those of the CPU and the device together."""
    known: Dict[int, Tuple[int, Dict[Optional[str], Tuple[int, int]], Boundary]] = {}
    for number, stage in enumerate(profile["stages"], 1):
        kind = engine.kind(number, boundary)
        if kind not in known:
            known[kind] = _times(engine, number, boundary, runs)
        untaped, taped, boundary = known[kind]
        forward, stage["backward_ns"] = taped[None]
        # A plan runs a stage without and with its tape about as often.
        stage["forward_ns"] = (untaped + forward) // 2
        for option in stage.get("options", ()):
            option["forward_ns"], option["backward_ns"] = taped[option["name"]]


def _times(
    engine: Any, number: int, boundary: Boundary, runs: int
) -> Tuple[int, Dict[Optional[str], Tuple[int, int]], Boundary]:
    taped: Dict[Optional[str], Tuple[int, int]] = {}
    output = engine.forward(number, boundary)
    untaped = _median(engine, runs, lambda: None, lambda _: engine.forward(number, boundary))
    ways: List[Optional[str]] = [None, *engine.options(number)]
    for way in ways:
        forward = _median(engine, runs, lambda: None, lambda _: engine.tape(number, way, boundary))

        def prepare() -> Any:
            tape, made = engine.tape(number, way, boundary)
            return tape, engine.some_gradient(made)

        backward = _median(engine, runs, prepare, lambda ready: engine.backward(number, *ready))
        taped[way] = forward, backward
    return untaped, taped, output


def _median(engine: Any, runs: int, prepare: Callable[[], Any], run: Callable[[Any], Any]) -> int:
    """The median of several runs in nanoseconds, of the device or of the CPU, whichever takes longer."""
    of_device, of_cpu = [], []
    asleep = 0.002
    for number in range(runs + 2):
        ready = prepare()
        engine.finish()
        begins, ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(int(asleep * CYCLES_PER_SECOND))
        begins.record()
        start = time.perf_counter_ns()
        made = run(ready)
        said = time.perf_counter_ns() - start
        ends.record()
        engine.finish()
        del made, ready
        engine.forget_gradients()
        asleep = max(asleep, 2e-9 * said)
        # The first two warm up, and find out how long the CPU takes.
        if number >= 2:
            of_device.append(begins.elapsed_time(ends) * 1e6)
            of_cpu.append(said)
    return int(max(statistics.median(of_device), statistics.median(of_cpu)))
