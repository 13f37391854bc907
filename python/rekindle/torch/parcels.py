"""Boundaries as they travel: as bytes for stores that are written in Rust, or under a number for those in Python."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, Dict, List, Tuple

import torch

from .engine import Boundary

DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


class Layout:
    """What a tensor was, apart from its bytes."""

    __slots__ = ("shape", "strides", "dtype", "device", "elements")

    def __init__(self, tensor: torch.Tensor):
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device
        self.strides = tuple(tensor.stride()) if is_dense(tensor) else None
        self.elements = tensor.numel()

    def over(self, flat: torch.Tensor) -> torch.Tensor:
        """The tensor whose elements, in the order of memory, are these."""
        if self.strides is None:
            return flat.view(self.shape)
        return flat.as_strided(self.shape, self.strides)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie next to each other, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def flat_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the order of memory: a view where they lie next to each other, else a copy."""
    tensor = tensor.detach()
    if is_dense(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))
    return tensor.reshape(-1)


class Tickets:
    """Boundaries between the executor and a store in Python."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._boundaries: Dict[int, Boundary] = {}

    def leave(self, boundary: Boundary) -> int:
        number = next(self._numbers)
        self._boundaries[number] = boundary
        return number

    def collect(self, number: int) -> Boundary:
        return self._boundaries.pop(number)


class ByNumber:
    """Parcels that are numbers: the boundary itself stays in Python."""

    def __init__(self, tickets: Tickets):
        self.tickets = tickets

    def export(self, boundary: Boundary) -> int:
        return self.tickets.leave(boundary)

    def restore(self, number: int, _bytes: List[bytes]) -> Boundary:
        return self.tickets.collect(number)


class AsBytes:
    """Parcels that are bytes, and a number for what the bytes do not tell."""

    def __init__(self) -> None:
        self._known: List[Tuple[List[Layout], Tuple[Any, ...], Any]] = []

    def export(self, boundary: Boundary) -> Tuple[int, List[Tuple[str, List[int], bytes]]]:
        layouts = [Layout(tensor) for tensor in boundary.tensors]
        self._known.append((layouts, boundary.spec, boundary.wanted))
        packed = []
        for tensor in boundary.tensors:
            flat = flat_of(tensor).cpu()
            size = flat.numel() * flat.element_size()
            name = DTYPES.get(flat.dtype, str(flat.dtype))
            packed.append((name, [flat.numel()], ctypes.string_at(flat.data_ptr(), size) if size else b""))
        return len(self._known) - 1, packed

    def restore(self, number: int, parts: List[bytes]) -> Boundary:
        layouts, spec, wanted = self._known[number]
        tensors = []
        for layout, part in zip(layouts, parts):
            if layout.elements == 0:
                flat = torch.empty(0, dtype=layout.dtype)
            else:
                # A copy that may be written to: PyTorch has no tensors that may not.
                flat = torch.frombuffer(bytearray(part), dtype=layout.dtype)
            tensors.append(layout.over(flat.to(layout.device)))
        return Boundary(tensors, spec, wanted)
