"""Small models of the shapes people train, and one step of each."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, blocks: int = 6, width: int = 32, dropout: float = 0.1):
        super().__init__()
        self.blocks = nn.Sequential(
            *[
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width))
                for _ in range(blocks)
            ]
        )
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float):
        super().__init__()
        self.heads, self.dropout = heads, nn.Dropout(dropout)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor]) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=2))
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        if mask is not None:
            scores = scores + mask
        mixed = self.dropout(scores.softmax(-1)) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class GptBlock(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4, dropout: float = 0.1):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x), mask)
        return x + self.mlp(self.norm_2(x))


class Gpt(nn.Module):
    """A small GPT with dropout, its head tied to its embedding, and a mask that goes to every block."""

    def __init__(self, blocks: int = 5, width: int = 32, vocabulary: int = 61, length: int = 12):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(GptBlock(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: Optional[torch.Tensor] = None) -> torch.Tensor:
        length = ids.shape[1]
        x = self.tokens(ids) + self.positions(torch.arange(length))
        mask = torch.full((length, length), float("-inf")).triu(1)
        for block in self.blocks:
            x = block(x, mask=mask)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class ConvNet(nn.Module):
    """Convolutions with BatchNorm, whose running statistics must be updated once."""

    def __init__(self, blocks: int = 5, channels: int = 6):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.Sequential(
            *[
                nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
                for _ in range(blocks)
            ]
        )
        self.head = nn.Linear(channels, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class DecoderLayer(nn.Module):
    """As in Hugging Face's models: keyword arguments, and a tuple out of which the first element goes on."""

    def __init__(self, width: int, index: int):
        super().__init__()
        self.layer_index = index
        self.attention_type = "full_attention"
        self.self_attn = Attention(width, 4, 0.0)
        self.input_layernorm = nn.LayerNorm(width)
        self.mlp = nn.Linear(width, width)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_embeddings: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
        **kwargs: Any,
    ) -> Tuple[Any, ...]:
        assert position_embeddings is not None
        cosine, sine = position_embeddings
        rotated = hidden_states * cosine + hidden_states.flip(-1) * sine
        attended = self.self_attn(self.input_layernorm(rotated), attention_mask)
        hidden_states = hidden_states + torch.tanh(self.mlp(attended))
        return hidden_states, (attended.mean(-1) if use_cache else None)


class Decoder(nn.Module):
    """The loop of a Hugging Face model."""

    def __init__(self, layers: int = 4, width: int = 32):
        super().__init__()
        self.embed_tokens = nn.Embedding(50, width)
        self.rotary = nn.Parameter(torch.randn(2, 9, width) * 0.1)
        self.layers = nn.ModuleList(DecoderLayer(width, index) for index in range(layers))
        self.number = layers
        self.lm_head = nn.Linear(width, 50)

    def forward(self, input_ids: torch.Tensor, labels: Optional[torch.Tensor] = None) -> Dict[str, Any]:
        hidden_states = self.embed_tokens(input_ids)
        length = input_ids.shape[1]
        attention_mask = torch.full((length, length), float("-inf")).triu(1)
        position_embeddings = (self.rotary[0, :length].cos(), self.rotary[1, :length].sin())
        for decoder_layer in self.layers[: self.number]:
            assert decoder_layer.attention_type == "full_attention"
            outputs = decoder_layer(
                hidden_states,
                attention_mask=attention_mask,
                position_embeddings=position_embeddings,
                use_cache=False,
            )
            hidden_states = outputs[0]
        logits = self.lm_head(hidden_states)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}


class Seen:
    """What a step leaves: everything that must be the same, bit for bit."""

    def __init__(self, loss: torch.Tensor, gradients: Dict[str, Optional[torch.Tensor]], buffers: Dict[str, torch.Tensor]):
        self.loss, self.gradients, self.buffers = loss, gradients, buffers
        self.random = torch.rand(3)

    def same_as(self, other: "Seen") -> List[str]:
        """The names of what differs."""
        wrong = [] if torch.equal(self.loss, other.loss) else ["loss"]
        if not torch.equal(self.random, other.random):
            wrong.append("random state")
        for group in ("gradients", "buffers"):
            mine, others = getattr(self, group), getattr(other, group)
            assert list(mine) == list(others)
            for name, tensor in mine.items():
                expected = others[name]
                if (tensor is None) != (expected is None):
                    wrong.append(f"{name}: one has none")
                elif tensor is not None and not torch.equal(tensor, expected):
                    wrong.append(name)
        return wrong


def step(
    model: nn.Module,
    run: Callable[[], torch.Tensor],
    inputs: Tuple[torch.Tensor, ...] = (),
    seed: int = 7,
    clear: bool = True,
) -> Seen:
    """One forward and backward pass from a fixed seed."""
    torch.manual_seed(seed)
    if clear:
        for tensor in (*model.parameters(), *inputs):
            tensor.grad = None
    loss = run()
    loss.backward()
    gradients = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    for number, tensor in enumerate(inputs):
        gradients[f"input {number}"] = None if tensor.grad is None else tensor.grad.clone()
    return Seen(loss.detach().clone(), gradients, {name: b.clone() for name, b in model.named_buffers()})


def twins(make: Callable[[], nn.Module]) -> Tuple[nn.Module, nn.Module]:
    """The same model twice."""
    torch.manual_seed(0)
    one = make()
    return one, copy.deepcopy(one)
