"""Random numbers are drawn once and drawn again the same: the state of the generators before each stage."""

from __future__ import annotations

from typing import List, Optional, Tuple

import torch

State = Tuple[torch.Tensor, ...]


class Generators:
    """PyTorch's default generators on the CPU and on the CUDA devices of a region.

    Reading a state never waits for a device: CUDA keeps it on the host.
    """

    __slots__ = ("devices",)

    def __init__(self, devices: List[torch.device]):
        self.devices = [device for device in devices if device.type == "cuda"]

    def state(self) -> State:
        states = [torch.default_generator.get_state()]
        for device in self.devices:
            states.append(torch.cuda.get_rng_state(device))
        return tuple(states)

    def restore(self, state: State) -> None:
        torch.default_generator.set_state(state[0])
        for device, of_device in zip(self.devices, state[1:]):
            torch.cuda.set_rng_state(of_device, device)

    @staticmethod
    def same(one: State, other: State) -> bool:
        return all(torch.equal(a, b) for a, b in zip(one, other))


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
        if not Generators.same(self.now, after):
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
