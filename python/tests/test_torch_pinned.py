"""The tier of pinned host memory, with streams that only write down what they are told.

A CPU has no streams; what is tested is the order in which they are made to wait, and that boundaries come back.
"""

from __future__ import annotations

import contextlib
from typing import Any, List

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
from rekindle import _core
from rekindle.torch import pinned
from rekindle.torch.codecs import Bf16, Int8
from rekindle.torch.engine import Boundary
from rekindle.torch.offload import Places
from rekindle.torch.parcels import Tickets
from rekindle.torch.trees import TENSOR
from test_torch_places import chain, offloading, plan_of
from torch_models import step, twins

torch.set_num_threads(1)


class Event:
    def __init__(self, stream: str, number: int):
        self.stream, self.number = stream, number


class Stream:
    """Writes down what it waits for."""

    def __init__(self, name: str, said: List[str]):
        self.name, self.said, self.recorded = name, said, 0

    def wait_event(self, event: Event) -> None:
        self.said.append(f"{self.name} waits for {event.stream} {event.number}")

    def record_event(self) -> Event:
        self.recorded += 1
        self.said.append(f"{self.name} records {self.recorded}")
        return Event(self.name, self.recorded)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    said: List[str] = []
    names = iter(["out", "back"] * 8)
    compute = Stream("compute", said)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(next(names), said))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: compute)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())

    def plain_buffer(self: Any, size: int) -> None:
        self.memory, self.used_until = torch.empty(size, dtype=torch.uint8), None

    monkeypatch.setattr(pinned.Buffer, "__init__", plain_buffer)
    return said


def host(limit: int = 1 << 20, codec: Any = None) -> pinned.PinnedHost:
    return pinned.PinnedHost(limit, torch.device("cpu"), Tickets(), codec)


def boundary(*tensors: Any) -> Boundary:
    return Boundary(list(tensors), TENSOR, [True] * len(tensors))


def test_who_waits_for_whom(said: List[str]) -> None:
    memory = host()
    store = memory.store()
    x = torch.randn(4, 5)
    store.put(3, memory.tickets.leave(boundary(x)))
    # The copy out begins when the boundary is there.
    assert said == ["compute records 1", "out waits for compute 1", "out records 1"]
    said.clear()
    store.wait(3)
    # Its memory is let go of when the copy is through.
    assert said == ["compute waits for out 1"]
    assert store.entries[3].boundary is None
    said.clear()
    store.prefetch(3)
    # Into memory that is free from here on, out of a buffer that is written by then.
    assert said == ["compute records 2", "back waits for compute 2", "back waits for out 1", "back records 1"]
    said.clear()
    taken = memory.tickets.collect(store.take(3))
    assert said == ["compute waits for back 1"]
    assert torch.equal(taken.tensors[0], x)
    store.forget(3)
    said.clear()
    store.put(4, memory.tickets.leave(boundary(torch.randn(4, 5))))
    # The buffer is used again once the copy back has read it.
    assert "out waits for back 1" in said
    assert memory.allocated == 512


def test_a_step_that_is_given_up_lets_go_in_order(said: List[str]) -> None:
    memory = host()
    store = memory.store()
    store.put(1, memory.tickets.leave(boundary(torch.randn(3))))
    store.put(2, memory.tickets.leave(boundary(torch.randn(3))))
    store.wait(2)
    store.prefetch(2)
    said.clear()
    del store
    assert said == ["compute waits for out 1", "compute waits for back 1"]
    assert memory.lend(1) and memory.lend(1)
    assert memory.allocated == 1024, "buffers were given back"


def test_the_limit_holds(said: List[str]) -> None:
    memory = host(limit=1024)
    store = memory.store()
    store.put(1, memory.tickets.leave(boundary(torch.randn(256))))
    with pytest.raises(MemoryError, match="1024 of 1024 bytes of pinned memory are used"):
        store.put(2, memory.tickets.leave(boundary(torch.randn(1))))


@pytest.mark.parametrize("codec", [None, Bf16(), Int8()])
def test_boundaries_come_back(said: List[str], codec: Any) -> None:
    memory = host(codec=codec)
    store = memory.store()
    tensors = [torch.randn(3, 4).t(), torch.arange(5), torch.randn(2, 3).to(torch.bfloat16)]
    store.put(1, memory.tickets.leave(Boundary(tensors, ("row", tuple, [TENSOR] * 3), [True, False, True])))
    store.wait(1)
    for _ in range(2):
        taken = memory.tickets.collect(store.take(1))
        for found, expected in zip(taken.tensors, tensors):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            if codec is None or expected.dtype == torch.int64:
                assert torch.equal(found, expected) and found.stride() == expected.stride()
            else:
                assert torch.allclose(found.float(), expected.float(), atol=0.05)


def region(limit: int) -> Any:
    places = Places(host=limit)
    memory = host(limit)
    places.storage, places.tickets = _core.Storage(), memory.tickets
    places.storage.add_python("host", memory.store)
    tier = {"name": "host", "capacity_bytes": 1 << 30, "write_bytes_per_second": 1, "read_bytes_per_second": 1}
    places.open = lambda profile, like: profile.update(tiers=[tier])  # type: ignore[method-assign]
    plain, ours = twins(chain)
    plan = plan_of(offloading("host"), {"tiers": [rekindle.Tier("host", 1 << 30, 1, 1)]})
    made = rekindle.torch.checkpointed(ours, plan=plan)
    made.planner.places = places
    return plain, ours, made


@pytest.mark.parametrize("limit", [1 << 20, 1200])
def test_gradients_are_plain_pytorchs(said: List[str], limit: int) -> None:
    """Also where pinned memory is too small for all of them: what does not fit stays, or is computed again."""
    plain, ours, made = region(limit)
    x = torch.randn(9, 16, requires_grad=True)
    for _ in range(2):
        expected = step(plain, lambda: plain(x).square().mean(), (x,))
        assert step(ours, lambda: made(x).square().mean(), (x,)).same_as(expected) == []
    assert any("waits for back" in line for line in said)
