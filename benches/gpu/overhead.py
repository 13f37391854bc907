#!/usr/bin/env python3
"""What a region costs on the CPU's side, block by block: plain PyTorch, everything kept, each block run again.

    python overhead.py --device cuda
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import statistics
import time
from typing import Any, Callable, Dict, List

import torch
from torch import nn

import rekindle.torch
from rekindle.torch import engine as engines
from rekindle.torch import node as nodes
from rekindle.torch.random_state import Generators

BLOCKS = 24


class Block(nn.Module):
    """So small that nothing but overhead is left."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def timed(run: Callable[[], Any], steps: int = 30) -> List[float]:
    """Forward and backward in microseconds a block, as the CPU has it."""
    halves = []
    for _ in range(steps):
        synchronize()
        start = time.perf_counter()
        loss = run()
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        halves.append((middle - start, end - middle))
    return [statistics.median(half) * 1e6 / BLOCKS for half in zip(*halves)]


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def each(name: str, run: Callable[[], Any], times: int = 200) -> None:
    run()
    start = time.perf_counter()
    for _ in range(times):
        run()
    print(f"  {name}: {(time.perf_counter() - start) / times * 1e6:.1f} us")


def watch(owner: Any, name: str, said: Dict[str, List[float]]) -> None:
    """Adds up the time in a function, whichever thread it runs on."""
    inner = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            said.setdefault(name, []).append(time.perf_counter() - start)

    setattr(owner, name, watched)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    device = torch.device(parser.parse_args().device)
    blocks = nn.Sequential(*[Block() for _ in range(BLOCKS)]).to(device)
    x = torch.randn(4, 8, device=device, requires_grad=True)
    for strategy in ("plain", "store-all", "every-1"):
        run = blocks if strategy == "plain" else rekindle.torch.checkpointed(blocks, strategy=strategy)
        forward, backward = timed(lambda: run(x).sum())
        print(f"{strategy}: {forward:.0f} us forward, {backward:.0f} us backward a block")
    print("pieces:")
    generators = Generators([device])
    state = generators.state()
    each("state of the generators", generators.state)
    each("state put back", lambda: generators.restore(state))
    each("states compared", lambda: generators.same(state, state))
    each("an empty tensor", lambda: x.new_empty(0))
    each("detach", x.detach)
    leaf = x.detach().requires_grad_()
    weight = blocks[0].layers[0].weight

    def graph() -> Any:
        return torch.autograd.grad([leaf @ weight], [leaf, weight], [x.detach()], allow_unused=True)

    each("a graph of one product, there and back", graph)
    region = rekindle.torch.checkpointed(blocks, strategy="store-all")
    region(x).sum().backward()
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(20):
        region(x)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(18)
    said: Dict[str, List[float]] = {}
    watch(engines.Engine, "backward", said)
    watch(engines, "_gradients", said)
    watch(nodes.Step, "go_back", said)
    for _ in range(20):
        loss = region(x).sum()
        start = time.perf_counter()
        loss.backward()
        said.setdefault("whole backward", []).append((time.perf_counter() - start) / BLOCKS)
    for name, times in said.items():
        print(f"  {name}: {statistics.median(times) * 1e6:.0f} us")


if __name__ == "__main__":
    main()
