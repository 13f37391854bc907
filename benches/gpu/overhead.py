#!/usr/bin/env python3
"""What a region costs on the CPU's side, block by block: plain PyTorch, everything kept, each block run again.

    python overhead.py --device cuda
    python overhead.py --device cuda --model gpt2-small --length 1024 --batch 8

With a model: whole steps under the same plan, in turns. The CPU waits for the device after each of them, so that it is never ahead.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import os
import pstats
import statistics
import sys
import time
from typing import Any, Callable, Dict, List

import torch
from torch import nn

import rekindle.torch
from rekindle.torch import engine as engines
from rekindle.torch import node as nodes
from rekindle.torch.random_state import Generators

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from models import SHAPES, build  # noqa: E402
from ways import per_block  # noqa: E402

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


def in_turns(options: argparse.Namespace) -> None:
    """Steps of a model: PyTorch's `checkpoint` per block and ours with each block run again, several times in turns."""
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    generator = torch.Generator().manual_seed(1)
    vocabulary = SHAPES[options.model].vocabulary
    tokens = torch.randint(0, vocabulary, (options.batch, options.length + 1), generator=generator).to(options.device)
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    for turn in range(1, options.turns + 1):
        for name in ("plain", "per-block", "every-1", "store-all"):
            model = build(options.model, options.length, options.device, dtype, 0)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} if options.device == "cuda" else {}))
            if name == "per-block":
                per_block(model, (ids, targets), optimizer)
            elif name != "plain":
                model.blocks = rekindle.torch.checkpointed(model.blocks, strategy=name)
            times = []
            for _ in range(options.steps + 5):
                synchronize()
                start = time.perf_counter()
                model(ids, targets).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                synchronize()
                times.append((time.perf_counter() - start) * 1e3)
            counted = times[5:]
            print(f"turn {turn}, {name}: {statistics.median(counted):.2f} ms a step, {min(counted):.2f} to {max(counted):.2f}", flush=True)
            del model, optimizer
            gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="", choices=["", *sorted(SHAPES)])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    if options.model:
        in_turns(options)
        return
    device = torch.device(options.device)
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
