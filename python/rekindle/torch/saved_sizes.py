"""The size of a tape where no allocator tells it: what autograd saves while a stage runs, and its output."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch

from . import trees
from .engine import Boundary, Engine
from .keeping import PARTIAL, PARTS


class Saved:
    """Within it, what autograd saves is counted, each piece of memory once."""

    def __init__(self, known: List[torch.Tensor]):
        self.known = {trees.storage_key(tensor) for tensor in known}
        self.pieces: Dict[int, int] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._note, lambda tensor: tensor)

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        self.add(tensor)
        # Apart from the graph: one that held what it has made would hold itself.
        return tensor.detach()

    def add(self, tensor: torch.Tensor) -> None:
        key = trees.storage_key(tensor)
        if key not in self.known:
            self.pieces[key] = trees.storage_bytes(tensor)

    def total(self) -> int:
        return sum(self.pieces.values())

    def __enter__(self) -> "Saved":
        self.hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.hooks.__exit__(*error)


def tape_size(engine: Engine, number: int, option: Optional[str], boundary: Boundary) -> Tuple[int, Boundary]:
    """What the tape of a stage takes beside its input and the parameters, and the next boundary."""
    block = engine.stage_list[number - 1].block
    known = [*boundary.tensors, *engine.extras, *block.parameters(), *block.buffers()]
    if option in PARTIAL:
        return _partial_size(engine, number, option, boundary, Saved(known))
    with Saved(known) as saved:
        tape, output = engine.tape(number, option, boundary)
    for tensor in tape.outputs:
        saved.add(tensor)
    assert output is not None, "only a ghost has none"
    return saved.total(), output


def _partial_size(engine: Engine, number: int, option: str, boundary: Boundary, saved: Saved) -> Tuple[int, Boundary]:
    """The same where the engine itself decides what stays: what is in the graph's places, and what is kept of costly calls."""
    if option == PARTS:
        ghost, output = engine.ghost(number, boundary, parts=True, values=True)
    else:
        ghost, output = engine.ghost(number, boundary, option)
    held = [holder.value for holder in ghost.holders] + ghost.pieces.tensors + output.tensors
    for tensor in held:
        if tensor is not None:
            saved.add(tensor)
    return saved.total(), output


def add_saved_sizes(engine: Any, boundary: Boundary, profile: Dict[str, Any]) -> None:
    """Puts the sizes of tapes into a profile of which only the times are measured."""
    known: Dict[int, Tuple[Dict[Optional[str], int], Boundary]] = {}
    for number, stage in enumerate(profile["stages"], 1):
        kind = engine.kind(number, boundary)
        if kind not in known:
            ways: List[Optional[str]] = [None, *engine.options(number)]
            found = {way: tape_size(engine, number, way, boundary) for way in ways}
            known[kind] = {way: size for way, (size, _) in found.items()}, found[None][1]
        sizes, boundary = known[kind]
        stage["tape_bytes"] = max(sizes[None], stage["output_bytes"])
        # As large as the output: nobody has counted it.
        stage.pop("gradient_bytes", None)
        for option in stage.get("options", ()):
            option["tape_bytes"] = max(sizes[option["name"]], stage["output_bytes"])
            # What it leaves out is there again while its backward runs.
            option["backward_extra_bytes"] = max(stage["tape_bytes"] - option["tape_bytes"], 0)
