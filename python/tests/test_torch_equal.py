"""Loss, every gradient, every buffer and the random state equal plain PyTorch's, bit for bit, under every plan."""

from __future__ import annotations

from typing import Any, Callable, Dict

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
from torch import nn
from torch_models import ConvNet, Decoder, Gpt, Mlp, step, twins

torch.set_num_threads(1)

RULES = ["every-1", "every-2", "every-3", "sqrt", "full", "store-all"]


def mlp_run(model: nn.Module) -> Callable[[], Any]:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(96, 32, generator=generator), torch.randint(0, 5, (96,), generator=generator)
    return lambda: nn.functional.cross_entropy(model(x), y)


def gpt_run(model: nn.Module) -> Callable[[], Any]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 61, (8, 12), generator=generator)
    return lambda: model(ids, ids.roll(-1, 1))


def conv_run(model: nn.Module) -> Callable[[], Any]:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 4, (4,), generator=generator)
    return lambda: nn.functional.cross_entropy(model(x), y)


def decoder_run(model: nn.Module) -> Callable[[], Any]:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, 50, (8, 9), generator=generator)
    return lambda: model(ids, labels=ids)["loss"]


MODELS: Dict[str, Any] = {
    "mlp": (Mlp, "blocks", mlp_run),
    "gpt": (Gpt, "blocks", gpt_run),
    "conv": (ConvNet, "blocks", conv_run),
    "decoder": (Decoder, "layers", decoder_run),
}


@pytest.mark.parametrize("strategy", RULES)
@pytest.mark.parametrize("name", MODELS)
def test_rules(name: str, strategy: str) -> None:
    make, attribute, run = MODELS[name]
    plain, ours = twins(make)
    setattr(ours, attribute, rekindle.torch.checkpointed(getattr(ours, attribute), strategy=strategy))
    for seed in (1, 2):
        expected, found = step(plain, run(plain), seed=seed), step(ours, run(ours), seed=seed)
        assert found.same_as(expected) == []


@pytest.mark.parametrize("name", MODELS)
def test_budgets(name: str) -> None:
    make, attribute, run = MODELS[name]
    plain, ours = twins(make)
    blocks = getattr(ours, attribute)
    expected = step(plain, run(plain))
    region = rekindle.torch.checkpointed(blocks, budget="1GiB", runs=1)
    setattr(ours, attribute, region)
    assert step(ours, run(ours)).same_as(expected) == []
    profile, most = region.profile, region.plan.predicted.peak_bytes
    least = rekindle.smallest_budget(profile)
    assert least < most
    forwards = set()
    for part in (0.0, 0.3, 0.6, 0.9):
        budget = int(least + (most - least) * part)
        region = rekindle.torch.checkpointed(blocks, budget=budget, profile=profile)
        setattr(ours, attribute, region)
        found = step(ours, run(ours))
        # The second step of a BatchNorm moves on from the first.
        found.buffers = expected.buffers
        assert found.same_as(expected) == []
        assert region.plan.predicted.peak_bytes <= budget
        forwards.add(region.plan.predicted.forwards)
    assert len(forwards) > 1, "all budgets gave one plan, so nothing was tested"


def test_batch_norm_is_updated_once() -> None:
    plain, ours = twins(ConvNet)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy="full")
    for _ in range(3):
        step(plain, conv_run(plain))
        step(ours, conv_run(ours))
    for (name, expected), (_, found) in zip(plain.named_buffers(), ours.named_buffers()):
        assert torch.equal(expected, found), name
    assert ours.blocks.stages[0].block[1].num_batches_tracked == 3


def test_other_buffers_are_updated_once_and_read_as_they_were() -> None:
    class Counting(nn.Module):
        """Its output depends on a buffer that it changes, as a spectral norm's does."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("scale", torch.ones(()))
            self.register_buffer("constant", torch.full((8,), 0.5))

        def forward(self, x: Any) -> Any:
            self.scale.mul_(1.25)
            return torch.tanh(self.linear(x) * self.scale + self.constant)

    plain, ours = twins(lambda: nn.Sequential(*[Counting() for _ in range(4)]))
    region = rekindle.torch.checkpointed(ours, strategy="full")
    x = torch.randn(3, 8)
    for _ in range(3):
        expected = step(plain, lambda: plain(x).square().mean())
        assert step(ours, lambda: region(x).square().mean()).same_as(expected) == []


def test_measuring_leaves_no_trace() -> None:
    plain, ours = twins(ConvNet)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    torch.manual_seed(5)
    expected_random = torch.rand(3)
    torch.manual_seed(5)
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    installed = rekindle.torch.auto(ours, (x,), budget="16MiB", loss=lambda y: y.square().mean(), runs=2)
    assert torch.equal(torch.rand(3), expected_random)
    assert all(parameter.grad is None for parameter in ours.parameters())
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    installed.remove()
    assert list(ours.state_dict()) == list(before)


def test_names_of_weights_stay() -> None:
    plain, ours = twins(Gpt)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy="every-1")
    assert list(ours.state_dict()) == list(plain.state_dict())
    ours.load_state_dict(plain.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in plain.named_parameters()]
