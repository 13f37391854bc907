"""`auto` finds the blocks, plans, installs, shows what it did, and undoes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
from rekindle.torch import errors as torch_errors
from rekindle.torch.planner import MARGIN
from rekindle.torch.whole_step import EXACT, Surroundings, Watch, state_as_it_will_be, state_to_come, surroundings
from torch import nn
from torch_models import ConvNet, Decoder, Gpt, Mlp, step, twins

torch.set_num_threads(1)


def quick(model: nn.Module, sample: Any, budget: Any = "1GiB", **more: Any) -> rekindle.torch.Installed:
    return rekindle.torch.auto(model, sample, budget, runs=1, **more)


def ids(rows: int = 4, length: int = 12, most: int = 61) -> Any:
    return torch.randint(0, most, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("make", "sample", "path", "wiring", "run"),
    [
        (Mlp, lambda: (torch.ones(96, 32),), "blocks", "value", lambda m: m(torch.ones(96, 32)).square().mean()),
        (Gpt, lambda: (ids(), ids()), "blocks", "value", lambda m: m(ids(), ids())),
        (ConvNet, lambda: torch.ones(2, 3, 8, 8), "blocks", "value", lambda m: m(torch.ones(2, 3, 8, 8)).square().mean()),
        (
            Decoder,
            lambda: {"input_ids": ids(2, 9, 50), "labels": ids(2, 9, 50)},
            "layers",
            "first",
            lambda m: m(ids(2, 9, 50), labels=ids(2, 9, 50))["loss"],
        ),
    ],
)
def test_blocks_are_found(make: Any, sample: Any, path: str, wiring: str, run: Any) -> None:
    plain, ours = twins(make)
    installed = quick(ours, sample())
    assert (installed.path, installed.region.wiring) == (path, wiring)
    assert getattr(ours, path) is installed.region
    expected = step(plain, lambda: run(plain))
    assert step(ours, lambda: run(ours)).same_as(expected) == []
    smallest = rekindle.smallest_budget(installed.profile)
    container = installed.region.container
    assert installed.remove() is ours and getattr(ours, path) is container
    # Gradients that are there would take nothing more, and everything would fit.
    ours.zero_grad(set_to_none=True)
    again = quick(ours, sample(), smallest + 4096)
    expected = step(plain, lambda: run(plain))
    assert step(ours, lambda: run(ours)).same_as(expected) == []
    assert again.plan.predicted.forwards > len(again.region.stages)
    with pytest.raises(torch_errors.NotInstalled):
        installed.remove()


def test_a_model_that_is_nothing_but_blocks() -> None:
    plain, ours = twins(lambda: nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)]))
    x = torch.randn(3, 8)
    installed = quick(ours, x, loss=lambda y: y.sum())
    assert installed.path == "" and "forward" in ours.__dict__
    expected = step(plain, lambda: plain(x).square().mean())
    assert step(ours, lambda: ours(x).square().mean()).same_as(expected) == []
    installed.remove()
    assert "forward" not in ours.__dict__


def test_what_it_did_is_shown() -> None:
    model = Mlp()
    installed = quick(model, torch.randn(64, 32))
    budget = rekindle.smallest_budget(installed.profile) + 20_000
    installed.remove()
    installed = quick(model, torch.randn(64, 32), budget)
    text = repr(installed)
    assert "6 blocks of `blocks` under a plan" in text
    assert "at its peak, as predicted" in text and "run again" in text and "tape kept" in text
    assert "workspace is not known" in text
    assert text.splitlines()[1].startswith("optimal (optimal)")
    page = installed._repr_html_()
    assert page.startswith("<pre>") and "svg" in page
    report = installed.report
    assert report.predicted_peak_bytes == installed.plan.predicted.peak_bytes <= budget
    assert len(report.ways()) == 6


def test_a_plan_is_saved_and_taken_again(tmp_path: Path) -> None:
    plain, ours = twins(Mlp)
    x = torch.randn(64, 32)
    first = quick(ours, x)
    budget = rekindle.smallest_budget(first.profile) + 4096
    first.remove()
    first = quick(ours, x, budget)
    first.plan.save(tmp_path / "plan.json")
    first.profile.save(tmp_path / "profile.json")
    first.remove()
    again = quick(ours, x, budget, plan=tmp_path / "plan.json", profile=str(tmp_path / "profile.json"))
    assert again.plan == first.plan
    expected = step(plain, lambda: plain(x).square().mean())
    assert step(ours, lambda: ours(x).square().mean()).same_as(expected) == []
    again.remove()
    without_profile = quick(ours, x, None, plan=tmp_path / "plan.json")
    assert step(ours, lambda: ours(x).square().mean()).same_as(expected) == []
    assert without_profile.plan == first.plan


class Skipping(nn.Module):
    """Reads what lies between its blocks."""

    def __init__(self, collects: bool):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.collects = collects

    def forward(self, x: Any) -> Any:
        between = []
        for block in self.blocks:
            x = block(x)
            between.append(x)
        return x + between[0] if self.collects else x


def test_a_model_that_reads_what_lies_between_is_refused() -> None:
    model = Skipping(True)
    with pytest.raises(torch_errors.ChainNotFound, match="reads or changes what lies between"):
        quick(model, torch.randn(3, 8), loss=lambda y: y.sum())
    assert isinstance(model.blocks, nn.ModuleList), "it is left as it was"
    quick(Skipping(False), torch.randn(3, 8), loss=lambda y: y.sum())


class Odd(nn.Module):
    """Blocks that do not run in a row."""

    def __init__(self, how: str):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.how = how

    def forward(self, x: Any) -> Any:
        if self.how == "twice":
            for block in [*self.blocks, self.blocks[0]]:
                x = block(x)
        elif self.how == "between":
            for block in self.blocks:
                x = block(x) + 1
        elif self.how == "by number":
            for number in range(3):
                x = self.blocks[number](x)
        else:
            x = self.blocks[0](x)
        return x


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("twice", "block 0 is called 2 times in a step, expected once"),
        ("between", "what a block gives is not what the next one takes"),
        ("one", "block 1 is called 0 times in a step"),
    ],
)
def test_blocks_that_do_not_run_in_a_row(how: str, words: str) -> None:
    with pytest.raises(torch_errors.ChainNotFound, match=words):
        quick(Odd(how), torch.randn(3, 8), loss=lambda y: y.sum())


def test_blocks_that_are_called_by_number_are_refused_before_training() -> None:
    model = Odd("by number")
    with pytest.raises(IndexError, match="a region runs as one"):
        quick(model, torch.randn(3, 8), loss=lambda y: y.sum())
    assert isinstance(model.blocks, nn.ModuleList)


def test_no_blocks_at_all() -> None:
    with pytest.raises(torch_errors.ChainNotFound, match="has no nn.Sequential or nn.ModuleList"):
        quick(nn.Linear(3, 3), torch.randn(2, 3))


def test_blocks_with_other_arguments_each() -> None:
    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Bilinear(8, 8, 8) for _ in range(3))

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = block(x, torch.ones(3, 8))
            return x

    with pytest.raises(torch_errors.ChainNotFound, match="block 1 is given another argument 1 than the first one"):
        quick(Masks(), torch.randn(3, 8), loss=lambda y: y.sum())


def test_a_model_that_turns_autocast_on_by_itself_is_planned_with_it() -> None:
    class Cast(Mlp):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(x)

    plain, ours = twins(Cast)
    x = torch.randn(16, 32)
    installed = quick(ours, x, loss=lambda y: y.float().sum())
    assert not torch.is_autocast_cpu_enabled()
    expected = step(plain, lambda: plain(x).float().square().mean())
    assert step(ours, lambda: ours(x).float().square().mean()).same_as(expected) == []
    # The step ran under the plan that was made: none was made for it alone.
    assert len(installed.region.planned) == 1


def test_frozen_models_have_nothing_to_plan() -> None:
    model = Mlp().requires_grad_(False)
    with pytest.raises(torch_errors.NotInstalled, match="needs no gradient"):
        quick(model, torch.randn(3, 32))


# What lies around a region: on CUDA it is measured; the sums are the same everywhere.


def seen(**live: int) -> Watch:
    watch = Watch(torch.device("cpu"))
    points = ["step begins", "forward begins", "forward ends", "loss", "backward begins", "backward ends", "step ends"]
    for at, point in enumerate(points):
        watch.live[point] = live[point.replace(" ", "_")]
        watch.peak[point] = watch.live[point] + 5
        watch.at[point] = at * 1000
    return watch


def test_what_lies_around_a_region() -> None:
    watch = seen(
        step_begins=1000,
        forward_begins=1100,  # 100 before the region
        forward_ends=1400,
        loss=1650,  # 250 behind it
        backward_begins=1430,  # 30 of gradients behind it
        backward_ends=1500,
        step_ends=1000 + 30 + 200 + 20,  # 200 of the region's, 20 before it
    )
    around = surroundings(watch, region_gradient_bytes=200, to_come=7, accumulates=False)
    assert around.base_bytes == 1007
    assert around.before == {
        "tape_bytes": 100,
        "forward_extra_bytes": 5,
        "backward_extra_bytes": 0,
        "parameter_gradient_bytes": 20,
        "forward_ns": 1000,
        "backward_ns": 1000,
    }
    assert (around.after["tape_bytes"], around.after["parameter_gradient_bytes"]) == (250, 30)
    accumulating = surroundings(watch, 200, 7, accumulates=True)
    assert (accumulating.after["parameter_gradient_bytes"], accumulating.after["backward_extra_bytes"]) == (0, 30)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.7, 1.0])
def test_a_plan_for_a_whole_step_runs_in_the_region(part: float) -> None:
    plain, ours = twins(lambda: Mlp(8))
    x = torch.randn(256, 32, requires_grad=True)
    around = {
        "tape_bytes": 300_000,
        "forward_extra_bytes": 100_000,
        "backward_extra_bytes": 50_000,
        "parameter_gradient_bytes": 70_000,
        "forward_ns": 10_000,
        "backward_ns": 30_000,
    }

    def region(budget: int) -> Any:
        made = rekindle.torch.checkpointed(ours.blocks, budget=budget, runs=1)
        made.planner.surroundings = Surroundings(1 << 20, around, around)
        made.planner.surveyed_bytes = x.numel() * 4
        return made

    torch.manual_seed(0)
    large = region(1 << 30)
    large(x).sum().backward()
    most = large.report.predicted_peak_bytes
    least = rekindle.smallest_budget(large.profile) + (1 << 20)
    ours.zero_grad(set_to_none=True)
    budget = int(least + (most - least) * part) + 65536
    made = region(budget)
    expected = step(plain, lambda: plain.blocks(x).square().mean(), (x,))
    assert step(ours, lambda: made(x).square().mean(), (x,)).same_as(expected) == []
    # Two thousandths stay free, and no more: a budget without that room for the same plan is not enough.
    assert MARGIN == 0.002 and made.planner.usable() == int(budget / 1.002)
    assert made.report.predicted_peak_bytes <= budget / 1.002
    if part == 0.0:
        ours.zero_grad(set_to_none=True)
        with pytest.raises(rekindle.BudgetTooSmall):
            region(least)(x)
    names = [stage.name for stage in made.profile.stages]
    assert names[0] == "(before the region)" and names[-1] == "(after the region)" and len(names) == 10
    # The profile of a whole step is taken again, with or without its plan.
    for given in ({}, {"plan": made.plan}):
        again = rekindle.torch.checkpointed(ours.blocks, budget=budget, profile=made.profile, **given)
        again.planner.surroundings, again.planner.surveyed_bytes = made.planner.surroundings, x.numel() * 4
        assert step(ours, lambda: again(x).square().mean(), (x,)).same_as(expected) == []
        assert again.plan.actions == made.plan.actions
    with pytest.raises(rekindle.BudgetTooSmall, match="are there before the step begins") as raised:
        region(1 << 20)(x)
    assert abs(raised.value.smallest_bytes - least) < 65536


def test_memory_like_the_optimizers_state() -> None:
    model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 3))
    model[0].bias.requires_grad_(False)
    cpu = torch.device("cpu")
    assert state_as_it_will_be(None, cpu) is None
    optimizer = torch.optim.AdamW(model.parameters())
    found = state_as_it_will_be(optimizer, cpu)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert [t.shape for t in found] == [p.shape for p in trained for _ in range(2)]
    assert not any(tensor.requires_grad for tensor in found)
    assert sum(4 * tensor.numel() for tensor in found) == state_to_come(optimizer, cpu)
    model(torch.randn(2, 10)).sum().backward()
    optimizer.step()
    assert state_as_it_will_be(optimizer, cpu) == []

    class Unheard(torch.optim.SGD):
        pass

    assert state_as_it_will_be(Unheard(model.parameters(), lr=1.0), cpu) is None


def test_the_optimizers_state_to_come() -> None:
    model = nn.Linear(10, 10, bias=False)
    cpu = torch.device("cpu")
    assert state_to_come(None, cpu) == 0
    optimizer = torch.optim.AdamW(model.parameters())
    assert state_to_come(optimizer, cpu) == 800
    model(torch.randn(2, 10)).sum().backward()
    optimizer.step()
    assert state_to_come(optimizer, cpu) == 0
    assert state_to_come(torch.optim.SGD(model.parameters(), lr=1.0), cpu) == 0
    assert state_to_come(torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9), cpu) == 400


def test_the_page_runs(root: Path) -> None:
    import doctest
    import re

    text = (root / "docs" / "pytorch.md").read_text()
    blocks = re.findall(r"^```pycon\n(.*?)^```$", text, re.M | re.S)
    assert len(blocks) == 2
    said: list = []
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "docs/pytorch.md", None, 0)
    failed, tried = doctest.DocTestRunner().run(test, out=said.append)
    assert tried > 5 and failed == 0, "".join(said)


def test_the_packages_own_example_runs() -> None:
    import doctest

    failed, tried = doctest.testmod(rekindle.torch)
    assert tried > 3 and failed == 0


def test_with_room_for_everything_the_blocks_run_as_they_are() -> None:
    plain, ours = twins(Mlp)
    x = torch.randn(96, 32, requires_grad=True)
    installed = quick(ours, x, "1GiB", loss=lambda y: y.sum())
    output = ours.blocks(x)
    assert type(output.grad_fn).__name__ == type(plain.blocks(x).grad_fn).__name__, "no node of ours is in the graph"
    expected = step(plain, lambda: plain(x).square().mean(), (x,))
    assert step(ours, lambda: ours(x).square().mean(), (x,)).same_as(expected) == []
    assert set(installed.report.ways()) == {"tape kept"}


def test_whether_the_allocator_hands_out_what_is_asked_for() -> None:
    watch = Watch(torch.device("cpu"))
    assert not watch.is_exact(10**6), "nobody counts"
    watch.live = {"step begins": 10**8, "loss": 10**9}
    watch.asked = {"step begins": 10**8 - EXACT - 1024, "loss": 0}
    assert watch.is_exact(2), "two numbers of their own"
    assert not watch.is_exact(1)
    watch.asked["step begins"] = None
    assert not watch.is_exact(2), "an old PyTorch"


def test_what_an_optimizer_counts_on_the_device_belongs_to_its_state() -> None:
    cpu, model = torch.device("cpu"), nn.Linear(64, 64)
    adam = torch.optim.AdamW(model.parameters())
    size = 2 * (64 * 64 + 64) * 4
    assert state_to_come(adam, cpu) == size
    for flag in ("fused", "capturable"):
        adam.param_groups[0].update({"fused": False, "capturable": False, flag: True})
        assert state_to_come(adam, cpu) == size + 2 * 512
        made = state_as_it_will_be(adam, cpu)
        assert [tensor.numel() for tensor in made] == [4096, 4096, 1, 64, 64, 1]
    assert state_to_come(torch.optim.SGD(model.parameters(), lr=0.1), cpu) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.float64, torch.bool])
def test_a_shape_takes_no_memory(dtype: Any) -> None:
    from rekindle.torch.api import without_memory

    whole = torch.zeros(99, dtype=torch.bfloat16)
    tensor = torch.zeros(3, 5).to(dtype)
    same = without_memory(tensor, whole)
    assert (same.shape, same.dtype, same.device) == (tensor.shape, tensor.dtype, tensor.device)
    assert same.data_ptr() == whole.data_ptr()
    # Memory that does not begin where such a number could.
    other = without_memory(tensor, whole[3:])
    assert other.shape == tensor.shape and other.dtype == dtype
    assert without_memory(torch.zeros(2, requires_grad=True), whole).requires_grad
