"""Random numbers are drawn once and drawn again the same: the state of the generators before each stage."""

from __future__ import annotations

import ctypes
from typing import Any, List, Optional, Tuple

import torch

State = Tuple[Any, ...]

try:
    _memcmp: Any = ctypes.CDLL(None).memcmp
    _memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
except (AttributeError, OSError, TypeError):
    _memcmp = None


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    # Five kilobytes on the host, once for each stage: `torch.equal` takes ten times as long.
    if _memcmp is None:
        return torch.equal(one, other)
    return one.numel() == other.numel() and _memcmp(one.data_ptr(), other.data_ptr(), one.numel()) == 0


class Generators:
    """PyTorch's default generators on the CPU and on the CUDA devices of a region.

    Reading a state never waits for a device: CUDA keeps it on the host, as a seed and how far the numbers have come.
    """

    __slots__ = ("devices", "counted")

    def __init__(self, devices: List[torch.device]):
        self.devices = [device for device in devices if device.type == "cuda"]
        # Two numbers are read and compared faster than a tensor.
        self.counted = bool(self.devices) and all(
            hasattr(self._generator(device), "get_offset") for device in self.devices
        )

    @staticmethod
    def _generator(device: torch.device) -> Any:
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]

    def state(self) -> State:
        if not self.devices:
            return (torch.default_generator.get_state(),)
        if self.counted:
            generators = [self._generator(device) for device in self.devices]
            counts = tuple((generator.initial_seed(), generator.get_offset()) for generator in generators)
            return (torch.default_generator.get_state(), *counts)
        states = [torch.cuda.get_rng_state(device) for device in self.devices]
        return (torch.default_generator.get_state(), *states)

    def restore(self, state: State) -> None:
        torch.default_generator.set_state(state[0])
        for device, of_device in zip(self.devices, state[1:]):
            if not self.counted:
                torch.cuda.set_rng_state(of_device, device)
                continue
            generator, (seed, offset) = self._generator(device), of_device
            if generator.initial_seed() != seed:
                generator.manual_seed(seed)
            generator.set_offset(offset)

    def same(self, one: State, other: State) -> bool:
        if not _same_bytes(one[0], other[0]):
            return False
        if self.counted:
            return one[1:] == other[1:]
        return all(torch.equal(a, b) for a, b in zip(one[1:], other[1:]))


class Draws:
    """For each stage, the state before its first run; none for stages that draw nothing."""

    __slots__ = ("generators", "before", "now")

    def __init__(self, generators: Generators, stages: int):
        self.generators = generators
        self.before: List[Optional[State]] = [None] * stages
        # Nothing else draws between two stages of a forward half, so that each state is read once.
        self.now: Optional[State] = None

    def begin(self) -> None:
        if self.now is None:
            self.now = self.generators.state()

    def end(self, index: int) -> None:
        after = self.generators.state()
        assert self.now is not None
        if not self.generators.same(self.now, after):
            self.before[index] = self.now
        self.now = after

    def pause(self) -> None:
        """The forward half is over: others may draw."""
        self.now = None

    def replay(self, index: int) -> "Replay":
        return Replay(self.generators, self.before[index])


class Replay:
    """Within it, the generators are as they were; afterwards as they are."""

    __slots__ = ("generators", "then", "meanwhile")

    def __init__(self, generators: Generators, then: Optional[State]):
        self.generators, self.then = generators, then
        self.meanwhile: Optional[State] = None

    def __enter__(self) -> None:
        if self.then is not None:
            self.meanwhile = self.generators.state()
            self.generators.restore(self.then)

    def __exit__(self, *_: object) -> None:
        if self.meanwhile is not None:
            self.generators.restore(self.meanwhile)
