"""What the executor costs beside the work of the blocks."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rekindle import _core
from rekindle.torch.schedules import schedule_by_rule

torch.set_num_threads(1)


class Nothing:
    """An engine whose stages do nothing: what is left is the executor, and the way from Rust to Python and back."""

    def forward(self, stage: int, boundary: Any) -> Any:
        return boundary

    def tape(self, stage: int, option: Any, boundary: Any) -> Any:
        return boundary, boundary

    def backward(self, stage: int, tape: Any, gradient: Any) -> Any:
        return gradient

    def stage_name(self, stage: int) -> str:
        return str(stage)


def test_an_action_takes_microseconds() -> None:
    """A block of 0.3 ms forward and 0.6 ms back has 9 µs for a hundredth; each has five actions at most."""
    stages = 24
    schedule, actions, _ = schedule_by_rule("every-1", [str(number) for number in range(stages)])
    engine, times = Nothing(), []
    for _ in range(30):
        start = time.perf_counter()
        executor = _core.Executor(schedule)
        executor.forward(engine, None)
        for _ in range(stages):
            executor.backward(engine, None)
        times.append(time.perf_counter() - start)
    per_block = statistics.median(times) / stages
    print(f"{per_block * 1e6:.1f} µs a block, {min(times) / len(actions) * 1e6:.2f} µs an action")
    # An unoptimised build on a busy machine is ten times slower than what people install.
    assert per_block < 90e-6


def test_the_halves_must_come_in_their_order() -> None:
    from rekindle.errors import RunError

    executor = _core.Executor(schedule_by_rule("full", ["a", "b"])[0])
    with pytest.raises(RunError, match="the backward half cannot run now: 0 of 9 actions ran"):
        executor.backward(Nothing(), None)
    executor.forward(Nothing(), None)
    with pytest.raises(RunError, match="the forward half cannot run now"):
        executor.forward(Nothing(), None)


def test_an_executor_does_not_start_itself_again() -> None:
    from rekindle.errors import RunError

    executor = _core.Executor(schedule_by_rule("store-all", ["a", "b"])[0])

    class Again(Nothing):
        def tape(self, stage: int, option: Any, boundary: Any) -> Any:
            return executor.forward(self, boundary)

    with pytest.raises(RunError, match="the region is running already"):
        executor.forward(Again(), None)
