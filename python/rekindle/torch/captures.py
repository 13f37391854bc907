"""Looks whether a stage's graph reaches a tensor whose gradient nobody would take."""

from __future__ import annotations

from typing import List

import torch

from .errors import TrackedCapture
from .stage import Stage
from .trees import describe, in_words


def check_captures(stage: Stage, outputs: List[torch.Tensor], known: List[torch.Tensor]) -> None:
    """Fails when a leaf of the graph behind ``outputs`` is not among ``known``."""
    ids = {id(tensor) for tensor in known}
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and not node.next_functions and id(leaf) not in ids:
            raise TrackedCapture(stage.number, stage.name, in_words(describe(leaf)))
        waiting.extend(parent for parent, _ in node.next_functions if parent is not None)
