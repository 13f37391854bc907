"""Several blocks as one stage."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rekindle.torch
from torch import nn
from torch_models import Decoder, Gpt, Mlp, step, twins

torch.set_num_threads(1)


@pytest.mark.parametrize("group", [2, 3, 10])
@pytest.mark.parametrize("strategy", ["every-1", "full", "store-all"])
def test_blocks_in_groups(group: int, strategy: str) -> None:
    ids = torch.randint(0, 50, (2, 9))
    cases: Any = [
        (Mlp, "blocks", 6, lambda m: m(torch.ones(9, 32)).square().mean()),
        (Gpt, "blocks", 5, lambda m: m(ids, ids)),
        (Decoder, "layers", 4, lambda m: m(ids, labels=ids)["loss"]),
    ]
    for make, attribute, count, run in cases:
        plain, ours = twins(make)
        region = rekindle.torch.checkpointed(getattr(ours, attribute), strategy=strategy, group=group)
        assert len(region.stages) == -(-count // group)
        setattr(ours, attribute, region)
        expected = step(plain, lambda: run(plain))
        assert step(ours, lambda: run(ours)).same_as(expected) == []
        assert list(ours.state_dict()) == list(plain.state_dict())


def test_a_frozen_block_in_eval_mode_stays_in_it() -> None:
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)) for _ in range(4)])
    blocks[1].eval()
    blocks[2][1].eval()
    modes = [module.training for block in blocks for module in block.modules()]
    region = rekindle.torch.checkpointed(blocks, strategy="every-1", group=2)
    region(torch.ones(2, 4)).sum().backward()
    assert [module.training for block in blocks for module in block.modules()] == modes


def test_arguments_that_are_spread_and_named() -> None:
    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Any, y: Any) -> Any:
            return torch.tanh(self.linear(x)) + y, y

    class Named(Spread):
        def forward(self, hidden: Any, y: Any) -> Any:  # type: ignore[override]
            return torch.tanh(self.linear(hidden)) + y

    x, y = torch.randn(3, 8), torch.randn(3, 8)
    plain, ours = twins(lambda: nn.ModuleList(Spread() for _ in range(5)))
    region = rekindle.torch.checkpointed(ours, strategy="every-1", wiring="spread", group=2)

    def run_plain() -> Any:
        a, b = x, y
        for block in plain:
            a, b = block(a, b)
        return a.sum()

    expected = step(plain, run_plain)
    assert step(ours, lambda: region(x, y)[0].sum()).same_as(expected) == []

    plain, ours = twins(lambda: nn.ModuleList(Named() for _ in range(5)))
    named = rekindle.torch.checkpointed(ours, strategy="every-1", group=2)

    def run_named() -> Any:
        a = x
        for block in plain:
            a = block(hidden=a, y=y)
        return a.sum()

    expected = step(plain, run_named)
    assert step(ours, lambda: named(hidden=x, y=y).sum()).same_as(expected) == []


def test_what_changes_its_input_goes_with_what_made_it() -> None:
    def make() -> nn.Sequential:
        layers = []
        for _ in range(4):
            layers += [nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    plain, ours = twins(make)
    region = rekindle.torch.checkpointed(ours, strategy="every-1")
    assert [stage.name for stage in region.stages][:3] == ["0", "1-2", "3"]
    x = torch.randn(2, 3, 6, 6)
    expected = step(plain, lambda: plain(x).square().mean())
    assert step(ours, lambda: region(x).square().mean()).same_as(expected) == []
