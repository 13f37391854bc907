"""The models that are measured: GPT-2 and a Llama, in plain PyTorch, with random weights."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    kind: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int = 50257


SHAPES = {
    "gpt2-small": Shape("gpt", 12, 768, 12, 12, 3072),
    "gpt2-medium": Shape("gpt", 24, 1024, 16, 16, 4096),
    "gpt2-xl": Shape("gpt", 48, 1600, 25, 25, 6400),
    "llama-1b": Shape("llama", 16, 2048, 32, 8, 8192, 128256),
    "tiny": Shape("gpt", 4, 64, 4, 4, 256, 257),
    "tiny-llama": Shape("llama", 4, 64, 4, 2, 192, 257),
}


class Attention(nn.Module):
    def __init__(self, shape: Shape, bias: bool):
        super().__init__()
        self.heads, self.kv_heads, self.depth = shape.heads, shape.kv_heads, shape.width // shape.heads
        self.query_key_value = nn.Linear(shape.width, (shape.heads + 2 * shape.kv_heads) * self.depth, bias=bias)
        self.out = nn.Linear(shape.width, shape.width, bias=bias)

    def forward(self, x: torch.Tensor, rotary: Optional[Tuple[torch.Tensor, torch.Tensor]] = None) -> torch.Tensor:
        batch, length, width = x.shape
        sizes = [self.heads * self.depth, self.kv_heads * self.depth, self.kv_heads * self.depth]
        q, k, v = self.query_key_value(x).split(sizes, dim=2)
        q = q.view(batch, length, self.heads, self.depth).transpose(1, 2)
        k = k.view(batch, length, self.kv_heads, self.depth).transpose(1, 2)
        v = v.view(batch, length, self.kv_heads, self.depth).transpose(1, 2)
        if rotary is not None:
            q, k = rotate(q, rotary), rotate(k, rotary)
        if self.kv_heads != self.heads:
            k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
            v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        mixed = attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    # PyTorch 1.13, on which the script is tested on a CPU.
    length = q.shape[-2]
    hidden = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v


def rotate(x: torch.Tensor, rotary: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cosine, sine = rotary
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class GptBlock(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape, bias=True)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.up = nn.Linear(shape.width, shape.hidden)
        self.down = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, self.weight.shape, self.weight, 1e-5)
        return (x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


class LlamaBlock(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.norm_1 = RmsNorm(shape.width)
        self.attention = Attention(shape, bias=False)
        self.norm_2 = RmsNorm(shape.width)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x: torch.Tensor, rotary: Tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x), rotary)
        normed = self.norm_2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Model(nn.Module):
    """Gives the loss. ``around`` is put around each block's call, such as PyTorch's checkpoint."""

    def __init__(self, shape: Shape, length: int, loss_rows: int = 0):
        super().__init__()
        self.shape, self.loss_rows = shape, loss_rows
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        if shape.kind == "gpt":
            self.positions = nn.Embedding(length, shape.width)
            self.blocks = nn.ModuleList(GptBlock(shape) for _ in range(shape.layers))
            self.norm: nn.Module = nn.LayerNorm(shape.width)
        else:
            depth = shape.width // shape.heads
            angles = torch.outer(torch.arange(length).float(), 500000.0 ** (-torch.arange(0, depth, 2).float() / depth))
            angles = torch.cat((angles, angles), dim=-1)
            self.register_buffer("cosine", angles.cos(), persistent=False)
            self.register_buffer("sine", angles.sin(), persistent=False)
            self.blocks = nn.ModuleList(LlamaBlock(shape) for _ in range(shape.layers))
            self.norm = RmsNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.around = None
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        rest: tuple = () if self.shape.kind == "gpt" else ((self.cosine, self.sine),)
        for block in self.blocks:
            x = block(x, *rest) if self.around is None else self.around(block, x, *rest)
        return self.loss_of(x, targets)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        if self.shape.kind == "gpt":
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return x

    def loss_of(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        if not self.loss_rows:
            return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())
        return self.loss_in_parts(x.flatten(0, 1), targets.flatten())

    def loss_in_parts(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss without all logits at once, for long sequences: a part's logits are computed again."""
        from torch.utils.checkpoint import checkpoint

        def part(rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.head(rows), labels, reduction="sum")

        total = x.new_zeros((), dtype=torch.float32)
        for start in range(0, len(targets), self.loss_rows):
            rows = slice(start, start + self.loss_rows)
            total = total + checkpoint(part, x[rows], targets[rows], use_reentrant=False)
        return total / len(targets)


def build(name: str, length: int, device: str, dtype: torch.dtype, loss_rows: int, layers: Optional[int] = None) -> Model:
    """A model with the weights of a fixed seed."""
    shape = SHAPES[name]
    if layers:
        shape = replace(shape, layers=layers)
    torch.manual_seed(0)
    # Made where they are used, where PyTorch can.
    with torch.device(device) if hasattr(torch, "compile") else contextlib.nullcontext():
        model = Model(shape, length, loss_rows)
    return model.to(device=device, dtype=dtype)
