"""Host memory as a tier for CUDA: pinned buffers, and copies on streams of their own beside the computation.

What is ordered how:

- A copy out waits for the stream that computes, up to where the boundary was made. The boundary's memory is let go of
  only after the computing stream was told to wait for the copy, so that whoever gets that memory next writes after it was
  read. The CPU never waits.
- A copy back is written into memory of the computing stream, and waits for what that stream has been told so far: the
  memory may have been somebody else's until then. Whoever reads the boundary makes the computing stream wait for the copy.
- A pinned buffer that is used again waits for the copy that last read it.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Tuple

import torch

from .codecs import Codec
from .engine import Boundary
from .parcels import Layout, Tickets, flat_of


class Buffer:
    """Pinned memory, and the last copy that used it."""

    __slots__ = ("memory", "used_until")

    def __init__(self, size: int):
        self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.used_until: Optional[torch.cuda.Event] = None


class PinnedHost:
    """Pinned memory up to a limit. Buffers are kept and used again: after the first step nothing is allocated."""

    def __init__(self, limit: int, device: torch.device, tickets: Tickets, codec: Optional[Codec] = None):
        self.limit, self.device, self.tickets, self.codec = limit, device, tickets, codec
        self.out = torch.cuda.Stream(device)
        self.back = torch.cuda.Stream(device)
        self.allocated = 0
        #: When a list, every copy and every wait is added to it: what it was, and the events around it.
        self.trace: Optional[List[Tuple[str, Any, Any]]] = None
        self._free: Dict[int, List[Buffer]] = {}

    def lend(self, size: int) -> Buffer:
        size = max(-(-size // 512) * 512, 512)
        free = self._free.setdefault(size, [])
        if free:
            return free.pop()
        if self.allocated + size > self.limit:
            raise MemoryError(f"{size} bytes are needed, but {self.allocated} of {self.limit} bytes of pinned memory are used")
        buffer = Buffer(size)
        self.allocated += size
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        self._free[buffer.memory.numel()].append(buffer)

    def store(self) -> "PinnedStore":
        return PinnedStore(self)

    def make_wait(self, event: Any) -> None:
        """Makes the stream that computes wait for a copy. The CPU goes on."""
        compute = torch.cuda.current_stream(self.device)
        with self.noted("waited", compute):
            compute.wait_event(event)

    @contextlib.contextmanager
    def noted(self, what: str, stream: Any) -> Iterator[None]:
        """Notes when something begins and ends on a stream, if that is asked for."""
        if self.trace is None:
            yield
            return
        begins, ends = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begins.record(stream)
        yield
        ends.record(stream)
        self.trace.append((what, begins, ends))

    def transfers(self) -> Tuple[float, float]:
        """How long the copies of the trace took, and how long the computing stream waited for them, in milliseconds."""
        torch.cuda.synchronize(self.device)
        times = {"moved": 0.0, "waited": 0.0}
        for what, begins, ends in self.trace or ():
            times[what] += begins.elapsed_time(ends)
        return times["moved"], times["waited"]


class Entry:
    """A boundary that is away, or on its way."""

    __slots__ = ("boundary", "encoded", "parts", "layouts", "spec", "wanted", "gone", "coming", "arrived")

    def __init__(self, boundary: Boundary):
        # Until the copy is through: nobody may write to the memory it reads.
        self.boundary: Optional[Boundary] = boundary
        self.encoded: List[torch.Tensor] = []
        self.parts: List[Tuple[Buffer, Layout]] = []
        self.layouts = [Layout(tensor) for tensor in boundary.tensors]
        self.spec, self.wanted = boundary.spec, boundary.wanted
        self.gone: Optional[torch.cuda.Event] = None
        self.coming: Optional[List[torch.Tensor]] = None
        self.arrived: Optional[torch.cuda.Event] = None


class PinnedStore:
    """The boundaries of one step in pinned memory. Called by the executor."""

    def __init__(self, host: PinnedHost):
        self.host = host
        self.entries: Dict[int, Entry] = {}

    def put(self, number: int, ticket: int) -> None:
        host = self.host
        boundary = host.tickets.collect(ticket)
        entry = Entry(boundary)
        encoded = [host.codec.encode(tensor) if host.codec else [tensor] for tensor in boundary.tensors]
        entry.encoded = [flat_of(part) for parts in encoded for part in parts]
        made = torch.cuda.current_stream(host.device).record_event()
        host.out.wait_event(made)
        with torch.cuda.stream(host.out), host.noted("moved", host.out):
            for flat in entry.encoded:
                layout = Layout(flat)
                size = flat.numel() * flat.element_size()
                try:
                    buffer = host.lend(size)
                except MemoryError:
                    self._undo(entry)
                    raise
                if buffer.used_until is not None:
                    host.out.wait_event(buffer.used_until)
                buffer.memory[:size].view(flat.dtype).copy_(flat, non_blocking=True)
                entry.parts.append((buffer, layout))
        entry.gone = host.out.record_event()
        for buffer, _ in entry.parts:
            buffer.used_until = entry.gone
        self.entries[number] = entry

    def _undo(self, entry: Entry) -> None:
        """There is no room for all of it: what was lent already goes back."""
        through = self.host.out.record_event()
        for buffer, _ in entry.parts:
            buffer.used_until = through
            self.host.give_back(buffer)

    def wait(self, number: int) -> None:
        entry = self.entries[number]
        if entry.boundary is not None:
            self.host.make_wait(entry.gone)
            entry.boundary, entry.encoded = None, []

    def prefetch(self, number: int) -> None:
        entry, host = self.entries[number], self.host
        if entry.coming is not None:
            return
        compute = torch.cuda.current_stream(host.device)
        entry.coming = [torch.empty(layout.elements, dtype=layout.dtype, device=host.device) for _, layout in entry.parts]
        host.back.wait_event(compute.record_event())
        host.back.wait_event(entry.gone)
        with torch.cuda.stream(host.back), host.noted("moved", host.back):
            for (buffer, layout), tensor in zip(entry.parts, entry.coming):
                size = layout.elements * tensor.element_size()
                tensor.copy_(buffer.memory[:size].view(layout.dtype), non_blocking=True)
        entry.arrived = host.back.record_event()
        for buffer, _ in entry.parts:
            buffer.used_until = entry.arrived

    def take(self, number: int) -> int:
        entry, host = self.entries[number], self.host
        self.prefetch(number)
        host.make_wait(entry.arrived)
        parts, entry.coming, entry.arrived = iter(entry.coming or ()), None, None
        tensors = []
        for layout in entry.layouts:
            if host.codec:
                tensors.append(layout.over(flat_of(host.codec.decode(parts, layout))))
            else:
                tensors.append(layout.over(next(parts)))
        return host.tickets.leave(Boundary(tensors, entry.spec, entry.wanted))

    def forget(self, number: int) -> None:
        self._let_go(self.entries.pop(number))

    def _let_go(self, entry: Entry) -> None:
        compute = torch.cuda.current_stream(self.host.device)
        # What a copy still reads or writes must not become somebody else's.
        if entry.boundary is not None and entry.gone is not None:
            compute.wait_event(entry.gone)
        if entry.coming is not None and entry.arrived is not None:
            compute.wait_event(entry.arrived)
        for buffer, _ in entry.parts:
            self.host.give_back(buffer)

    def __del__(self) -> None:
        # A step that was given up half-way.
        for entry in self.entries.values():
            self._let_go(entry)
        self.entries = {}


def measure_pinned(device: torch.device, size: int, runs: int = 5) -> Tuple[int, int]:
    """How fast pinned memory is written from the device and read by it, in bytes per second."""
    size = max(min(size, 256 << 20), 1 << 20)
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(size, dtype=torch.uint8, device=device)
    speeds = []
    for source, target in ((there, pinned), (pinned, there)):
        times = []
        for _ in range(runs + 1):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        speeds.append(max(int(size / (sorted(times[1:])[runs // 2] / 1000)), 1))
    return speeds[0], speeds[1]
