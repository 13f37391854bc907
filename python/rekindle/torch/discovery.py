"""Finds the blocks of a model that run in a row, by running it once and watching."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import nn

from . import trees
from .buffers import Buffers
from .errors import ChainNotFound
from .random_state import Generators
from .wiring import FIRST, SPREAD, VALUE


class Chain:
    """Blocks in a row, and how they are called."""

    def __init__(self, path: str, container: nn.Module, wiring: str, weight: int):
        self.path, self.container, self.wiring, self.weight = path, container, wiring, weight


class Seen:
    """One call of a block."""

    __slots__ = ("args", "kwargs", "output")

    def __init__(self, args: Tuple[Any, ...], kwargs: Dict[str, Any], output: Any):
        self.args, self.kwargs, self.output = args, kwargs, output


def find_chain(model: nn.Module, run: Callable[[], Any], device: torch.device) -> Chain:
    """The longest row of blocks in one container, heaviest first."""
    candidates = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, (nn.Sequential, nn.ModuleList)) and len(module) > 1
    ]
    if not candidates:
        raise ChainNotFound(
            "the model has no nn.Sequential or nn.ModuleList with two blocks or more; give the blocks themselves to "
            "rekindle.torch.checkpointed"
        )
    seen = _watch(model, candidates, run, device)
    found: List[Chain] = []
    reasons: List[str] = []
    for path, container in candidates:
        calls = [seen[id(block)] for block in container.children()]
        wiring, reason = _wiring(container, calls)
        if wiring is None:
            reasons.append(f"`{path or type(model).__name__}`: {reason}")
            continue
        weight = sum(sum(map(trees.tensor_bytes, block.parameters())) for block in container.children())
        found.append(Chain(path, container, wiring, weight))
    if not found:
        raise ChainNotFound(
            "no blocks of the model run in a row; " + "; ".join(reasons) + ". Give a region to rekindle.torch.checkpointed"
        )
    # An outer container weighs as much as what is in it: of equals the one with more blocks.
    return max(found, key=lambda chain: (chain.weight, len(chain.container)))


def _watch(
    model: nn.Module, candidates: Sequence[Tuple[str, nn.Module]], run: Callable[[], Any], device: torch.device
) -> Dict[int, List[Seen]]:
    seen: Dict[int, List[Seen]] = {}
    handles = []

    def watching(block: nn.Module) -> Callable[..., Any]:
        forward = block.forward

        def watched(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            seen[id(block)].append(Seen(args, kwargs, output))
            return output

        return watched

    blocks = {id(block): block for _, container in candidates for block in container.children()}
    generators = Generators([device])
    state = generators.state()
    try:
        for key, block in blocks.items():
            seen[key] = []
            # Not a hook: before PyTorch 2.0 hooks are not told keyword arguments.
            had = block.__dict__.get("forward")
            block.__dict__["forward"] = watching(block)
            handles.append((block, had))
        with torch.no_grad(), Buffers(model).look():
            run()
    finally:
        for block, had in handles:
            del block.__dict__["forward"]
            if had is not None:
                block.__dict__["forward"] = had
        generators.restore(state)
    return seen


def _wiring(container: nn.Module, calls: List[List[Seen]]) -> Tuple[Optional[str], str]:
    """How the blocks of a container are called in a row; or why they are not."""
    names = [name for name, _ in container.named_children()]
    for name, of_block in zip(names, calls):
        if len(of_block) != 1:
            return None, f"block {name} is called {len(of_block)} times in a step, expected once"
    row = [of_block[0] for of_block in calls]
    for wiring in (VALUE, SPREAD, FIRST):
        if all(_feeds(wiring, before, after) for before, after in zip(row, row[1:])):
            break
    else:
        return None, "what a block gives is not what the next one takes"
    first = row[0]
    for name, call in zip(names[1:], row[1:]):
        difference = _rest_differs(wiring, first, call)
        if difference is not None:
            return None, f"block {name} is given another {difference} than the first one"
    return wiring, ""


def _feeds(wiring: str, before: Seen, after: Seen) -> bool:
    output = before.output
    if wiring == SPREAD:
        if not isinstance(output, (tuple, list)) or len(output) != len(after.args) or len(after.args) < 2:
            return False
        return all(_same(given, taken) for given, taken in zip(output, after.args))
    if wiring == FIRST:
        if not isinstance(output, (tuple, list)) or not output:
            return False
        output = output[0]
    taken = after.args[0] if after.args else next(iter(after.kwargs.values()), None)
    return _same(output, taken)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same tensors in the same tree."""
    first, first_spec = trees.flatten(one)
    second, second_spec = trees.flatten(other)
    if not first or len(first) != len(second) or any(a is not b for a, b in zip(first, second)):
        return False
    return first_spec == second_spec


def _rest_differs(wiring: str, one: Seen, other: Seen) -> Optional[str]:
    if wiring == SPREAD:
        pairs: List[Tuple[str, Any, Any]] = []
    else:
        if len(one.args) != len(other.args):
            return "number of arguments"
        pairs = [(f"argument {i}", a, b) for i, (a, b) in enumerate(zip(one.args[1:], other.args[1:]), 1)]
    if list(one.kwargs) != list(other.kwargs):
        return "set of keyword arguments"
    skipped = None if wiring == SPREAD or one.args else next(iter(one.kwargs), None)
    pairs += [(f"`{name}`", one.kwargs[name], other.kwargs[name]) for name in one.kwargs if name != skipped]
    for name, a, b in pairs:
        tensors, spec = trees.flatten(a)
        others, other_spec = trees.flatten(b)
        if len(tensors) != len(others) or any(x is not y for x, y in zip(tensors, others)):
            return name
        if not tensors and a is not b and a != b:
            return name
    return None
