"""Codecs on the device: fewer bytes for a boundary, at the price of digits. Used only where they are named."""

from __future__ import annotations

from typing import Iterator, List, Optional

import torch

from rekindle.errors import UnknownName

from .parcels import Layout

#: Values that share a scale, as in Rust's `int8`.
BLOCK = 64


class Codec:
    """Makes tensors smaller; leaves those alone that it cannot."""

    name = ""
    #: What 1,024 bytes of `float32` become.
    bytes_per_kibibyte = 1024

    def takes(self, dtype: torch.dtype) -> bool:
        raise NotImplementedError

    def encode(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        raise NotImplementedError

    def decode(self, parts: Iterator[torch.Tensor], layout: Layout) -> torch.Tensor:
        raise NotImplementedError

    def ratio(self, dtype: torch.dtype) -> float:
        """What a byte becomes."""
        raise NotImplementedError


class Bf16(Codec):
    """`float32` as `bfloat16`: within 2⁻⁸ of each value."""

    name = "bf16"

    def takes(self, dtype: torch.dtype) -> bool:
        return dtype == torch.float32

    def encode(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        return [tensor.to(torch.bfloat16) if self.takes(tensor.dtype) else tensor]

    def decode(self, parts: Iterator[torch.Tensor], layout: Layout) -> torch.Tensor:
        return next(parts).to(layout.dtype)

    def ratio(self, dtype: torch.dtype) -> float:
        return 0.5 if self.takes(dtype) else 1.0


class Int8(Codec):
    """A byte for each value, and a scale for every 64: within 1/254 of the largest among them."""

    name = "int8"

    def takes(self, dtype: torch.dtype) -> bool:
        return dtype in (torch.float32, torch.bfloat16, torch.float16)

    def encode(self, tensor: torch.Tensor) -> List[torch.Tensor]:
        from .parcels import flat_of

        if not self.takes(tensor.dtype):
            return [tensor]
        flat = flat_of(tensor)
        short = -flat.numel() % BLOCK
        if short:
            flat = torch.nn.functional.pad(flat, (0, short))
        blocks = flat.view(-1, BLOCK)
        scale = blocks.abs().amax(dim=1, keepdim=True).float() / 127
        # A block of zeros has no scale, and needs none.
        safe = torch.where(scale > 0, scale, torch.ones_like(scale))
        return [torch.round(blocks / safe).clamp(-127, 127).to(torch.int8), scale.view(-1)]

    def decode(self, parts: Iterator[torch.Tensor], layout: Layout) -> torch.Tensor:
        if not self.takes(layout.dtype):
            return next(parts)
        values, scale = next(parts), next(parts)
        flat = (values.view(-1, BLOCK).float() * scale.view(-1, 1)).to(layout.dtype).view(-1)
        return flat[: layout.elements]

    def ratio(self, dtype: torch.dtype) -> float:
        size = torch.tensor([], dtype=dtype).element_size()
        return (1 + 4 / BLOCK) / size if self.takes(dtype) else 1.0


CODECS = {"bf16": Bf16, "int8": Int8}


def codec_named(name: Optional[str]) -> Optional[Codec]:
    """The codec of this name for CUDA's boundaries."""
    if name is None:
        return None
    if name not in CODECS:
        known = ", ".join(CODECS)
        raise UnknownName(f"there is no codec `{name}`, expected one of: {known}", found=name, known=list(CODECS))
    return CODECS[name]()
