"""Boundaries that go to host memory, to a disk, or into fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
from rekindle import errors
from rekindle.torch.parcels import Layout, flat_of, is_dense
from torch import nn
from torch_models import step, twins

torch.set_num_threads(1)


class Block(nn.Module):
    """Its boundary is not stored row by row, so that whoever loses the order is found out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.linear(x).transpose(0, 1)).contiguous().transpose(0, 1)


def chain() -> nn.Sequential:
    return nn.Sequential(*[Block() for _ in range(5)])


def offloading(place: str, blocks: int = 5) -> List[str]:
    """Each block by itself, with its input away meanwhile."""
    actions = []
    for number in range(1, blocks):
        actions += [f"keep x{number - 1}", f"offload x{number - 1} {place}", f"forward {number}", f"drop x{number - 1}"]
    actions += [f"tape {blocks}", f"backward {blocks}"]
    for number in range(blocks - 1, 0, -1):
        actions += [f"fetch x{number - 1} {place}", f"tape {number}", f"drop x{number - 1} {place}", f"backward {number}"]
    return actions


def compressing(codec: str, blocks: int = 5) -> List[str]:
    return [action.replace("offload ", "compress ") for action in offloading(codec, blocks)]


def plan_of(actions: List[str], places: Any) -> rekindle.Plan:
    stages = [rekindle.StageProfile(str(i), 1, 1, 1, 1) for i in range(5)]
    profile = rekindle.Profile("m", "cpu", 1, stages, **places)
    return rekindle.Plan.of_actions(profile, actions)



@pytest.mark.parametrize("place", ["host", "disk"])
def test_boundaries_come_back_as_they_were(place: str, tmp_path: Path) -> None:
    plain, ours = twins(chain)
    plan = plan_of(offloading(place), {"tiers": [rekindle.Tier(place, 1 << 30, 1, 1)]})
    where = {"host": "16MiB"} if place == "host" else {"disk": (tmp_path, "16MiB")}
    region = rekindle.torch.checkpointed(ours, plan=plan, **where)
    x = torch.randn(9, 16, requires_grad=True)
    for _ in range(2):
        expected = step(plain, lambda: plain(x).square().mean(), (x,))
        assert step(ours, lambda: region(x).square().mean(), (x,)).same_as(expected) == []
    if place == "disk":
        assert list(tmp_path.iterdir()), "the file is there as long as the region is"


def test_tuples_with_integers_travel(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, value: Any) -> Any:
            x, ids, half = value
            return torch.tanh(self.linear(x) + ids[:, None] + half.float()), ids + 1, half

    plain, ours = twins(lambda: nn.Sequential(*[Pair() for _ in range(5)]))
    plan = plan_of(offloading("disk"), {"tiers": [rekindle.Tier("disk", 1 << 30, 1, 1)]})
    region = rekindle.torch.checkpointed(ours, plan=plan, disk=(tmp_path, "16MiB"))
    x = torch.randn(9, 16, requires_grad=True)
    value = (x, torch.arange(9), torch.randn(9, 16).to(torch.bfloat16))
    expected = step(plain, lambda: plain(value)[0].square().mean(), (x,))
    assert step(ours, lambda: region(value)[0].square().mean(), (x,)).same_as(expected) == []


@pytest.mark.parametrize(("codec", "close"), [("bf16", 0.03), ("int8", 0.06), ("lz4", 0.0)])
def test_codecs(codec: str, close: float) -> None:
    plain, ours = twins(chain)
    plan = plan_of(compressing(codec), {"codecs": [rekindle.Codec(codec, 512, 1, 1)]})
    region = rekindle.torch.checkpointed(ours, plan=plan, codecs=[codec])
    x = torch.randn(9, 16)
    expected = step(plain, lambda: plain(x).square().mean())
    found = step(ours, lambda: region(x).square().mean())
    assert torch.equal(found.loss, expected.loss), "the forward pass reads what it made"
    if close == 0.0:
        assert found.same_as(expected) == []
        return
    wrong = found.same_as(expected)
    assert wrong, "a codec that loses nothing was not used"
    for name, gradient in found.gradients.items():
        assert (gradient - expected.gradients[name]).norm() <= close * expected.gradients[name].norm(), name


def test_a_plan_with_a_disk_is_found_where_it_pays(tmp_path: Path) -> None:
    plain, ours = twins(chain)
    x = torch.randn(512, 16)
    region = rekindle.torch.checkpointed(ours, budget="64MiB", runs=1, disk=(tmp_path, "16MiB"))
    region(x).sum().backward()
    assert [tier.name for tier in region.profile.tiers] == ["disk"]
    assert region.profile.tiers[0].write_bytes_per_second > 1
    smallest = rekindle.smallest_budget(region.profile)
    region = rekindle.torch.checkpointed(ours, budget=smallest, profile=region.profile, disk=(tmp_path, "16MiB"))
    expected = step(plain, lambda: plain(x).square().mean())
    assert step(ours, lambda: region(x).square().mean()).same_as(expected) == []


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    x = torch.randn(9, 16)
    absent = rekindle.torch.checkpointed(chain(), budget="1MiB", runs=1, disk=tmp_path / "absent")
    with pytest.raises(errors.PlaceError, match="absent"):
        absent(x)
    unknown = rekindle.torch.checkpointed(chain(), budget="1MiB", runs=1, codecs=["zip"])
    with pytest.raises(errors.UnknownName, match="there is no codec `zip`"):
        unknown(x)
    with pytest.raises(errors.ArgumentError, match="host_codec is for CUDA"):
        rekindle.torch.checkpointed(chain(), budget="1MiB", runs=1, host="1MiB", host_codec="bf16")(x)


def test_a_plan_for_a_place_that_was_not_given() -> None:
    plan = plan_of(offloading("host"), {"tiers": [rekindle.Tier("host", 1 << 30, 1, 1)]})
    with pytest.raises(errors.IllegalPlan, match="host"):
        rekindle.torch.checkpointed(chain(), plan=plan)(torch.randn(9, 16))


def test_a_place_that_is_too_small_is_refused_before_anything_runs(tmp_path: Path) -> None:
    plan = plan_of(offloading("disk"), {"tiers": [rekindle.Tier("disk", 1 << 30, 1, 1)]})
    region = rekindle.torch.checkpointed(chain(), plan=plan, disk=(tmp_path, 2 * 9 * 16 * 4))
    with pytest.raises(errors.IllegalPlan, match=r"`disk` would hold 1.7 KiB, but its capacity is 1.1 KiB"):
        region(torch.randn(9, 16))


def test_the_order_of_memory_is_kept() -> None:
    for tensor in (
        torch.randn(3, 4, 5).permute(2, 0, 1),
        torch.randn(3, 4)[:, ::2],
        torch.randn(()),
        torch.empty(0, 3),
        torch.randn(1, 3, 1).expand(1, 3, 1),
        torch.randn(3, 1).expand(3, 4),
        torch.arange(6).view(2, 3).t(),
    ):
        back = Layout(tensor).over(flat_of(tensor).clone())
        assert torch.equal(back, tensor)
        if is_dense(tensor):
            assert back.stride() == tensor.stride() or tensor.numel() <= 1


def test_codecs_of_the_device_are_as_close_as_they_say() -> None:
    from rekindle.torch.codecs import Bf16, Int8

    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16):
        tensor = (torch.randn(7, 33) * 3).to(dtype)
        for codec, bound in ((Bf16(), 2**-8), (Int8(), 1 / 127)):
            parts = codec.encode(tensor)
            back = codec.decode(iter(parts), Layout(tensor)).reshape(tensor.shape)
            assert back.dtype == tensor.dtype
            assert (back.float() - tensor.float()).abs().max() <= bound * tensor.float().abs().max()
            size = sum(part.numel() * part.element_size() for part in parts)
            assert size <= codec.ratio(dtype) * tensor.numel() * tensor.element_size() + 68
    ids = torch.arange(5)
    assert Int8().encode(ids)[0] is ids
