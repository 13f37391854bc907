"""Wrong uses are refused with typed exceptions that say what was found, what was expected and what to do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
from rekindle import errors
from rekindle.torch import errors as torch_errors
from torch import nn
from torch_models import Mlp

torch.set_num_threads(1)


def blocks(count: int = 4) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(count)])


class Block(nn.Module):
    """A block that does what a test says."""

    def __init__(self, does: Any):
        super().__init__()
        self.linear, self.does, self.calls = nn.Linear(8, 8), does, 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.does(self, x)


def with_block(does: Any, strategy: str = "every-1") -> Any:
    model = blocks()
    model[1] = Block(does)
    return rekindle.torch.checkpointed(model, strategy=strategy)


@pytest.mark.parametrize("strategy", ["every-1", "store-all", "full"])
def test_a_block_that_changes_its_input(strategy: str) -> None:
    region = with_block(lambda block, x: block.linear(x.add_(1)), strategy)
    with pytest.raises(torch_errors.InputChanged, match=r"stage 2 \(`1`\) changed tensor 0 of its input in place") as raised:
        region(torch.randn(3, 8, requires_grad=True)).sum().backward()
    assert (raised.value.stage, raised.value.name) == (2, "1")
    assert isinstance(raised.value, errors.RekindleError)


def test_shapes_that_change() -> None:
    region = with_block(lambda block, x: block.linear(x)[: 3 if block.calls == 1 else 2], "full")
    words = r"stage 2 \(`1`\) made float32\[2, 8\] for tensor 0 of its output when it was recomputed, but float32\[3, 8\]"
    with pytest.raises(torch_errors.StageChanged, match=words):
        region(torch.randn(3, 8)).sum().backward()


def test_a_number_of_tensors_that_changes() -> None:
    region = with_block(lambda block, x: (block.linear(x),) * (1 + (block.calls == 1)), "full")
    region.stages[2].block.forward = lambda x: x[0]
    with pytest.raises(torch_errors.StageChanged, match="made 1 tensors"):
        region(torch.randn(3, 8)).sum().backward()


def test_what_the_backward_reads_changes() -> None:
    """Where only that is computed again, as with each block by itself."""
    region = with_block(lambda block, x: block.linear(x.repeat(1 if block.calls == 1 else 2, 1))[:3].exp())
    words = r"stage 2 \(`1`\) made float32\[6, 8\] for tensor \d of what its backward reads when it was recomputed, but float32\[3, 8\]"
    with pytest.raises(torch_errors.StageChanged, match=words):
        region(torch.randn(3, 8)).sum().backward()
    fewer = with_block(lambda block, x: block.linear(x).exp() if block.calls == 1 else block.linear(x))
    with pytest.raises(torch_errors.StageChanged, match="of what its backward reads"):
        fewer(torch.randn(3, 8)).sum().backward()


def test_a_tensor_from_outside() -> None:
    outside = torch.randn(8, requires_grad=True)
    region = with_block(lambda block, x: block.linear(x) * outside)
    words = r"stage 2 \(`1`\) uses a tracked tensor that is neither its input nor a parameter of its module"
    with pytest.raises(torch_errors.TrackedCapture, match=words):
        region(torch.randn(3, 8)).sum().backward()
    # One that needs no gradient is a constant.
    constant = outside.detach()
    with_block(lambda block, x: block.linear(x) * constant)(torch.randn(3, 8)).sum().backward()


def test_parameters_that_change_between_the_passes() -> None:
    region = rekindle.torch.checkpointed(blocks(), strategy="every-1")
    loss = region(torch.randn(3, 8)).sum()
    with torch.no_grad():
        region.stages[1].block[0].weight.mul_(2)
    with pytest.raises(torch_errors.KeptChanged, match=r"stage 2 \(`1`\) cannot be run again: a parameter was changed in place"):
        loss.backward()


def test_an_input_that_changes_between_the_passes() -> None:
    region = rekindle.torch.checkpointed(blocks(), strategy="every-1")
    x = torch.randn(3, 8)
    loss = region(x).sum()
    x.zero_()
    with pytest.raises(torch_errors.KeptChanged, match=r"stage 1 \(`0`\).*tensor 0 of its input was changed"):
        loss.backward()


def test_an_argument_that_changes_between_the_passes() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Any, scale: Any) -> Any:
            # Nothing is saved of what is only added.
            return self.linear(x) + scale

    region = rekindle.torch.checkpointed([Scaled(), Scaled(), Scaled()], strategy="every-1")
    scale = torch.ones(8)
    loss = region(torch.randn(3, 8), scale).sum()
    scale.add_(1)
    with pytest.raises(torch_errors.KeptChanged, match="tensor 0 of its other arguments was changed"):
        loss.backward()


def test_backward_twice() -> None:
    region = rekindle.torch.checkpointed(blocks(), strategy="every-1")
    loss = region(torch.randn(3, 8)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(torch_errors.BackwardTwice, match="has gone back already"):
        loss.backward()


def test_a_gradient_of_a_gradient() -> None:
    region = rekindle.torch.checkpointed(blocks(), strategy="every-1")
    x = torch.randn(3, 8, requires_grad=True)
    with pytest.raises(torch_errors.DoubleBackward, match="no gradient of its gradient"):
        torch.autograd.grad(region(x).sum(), x, create_graph=True)


def test_the_users_own_exception_comes_through() -> None:
    class Mine(Exception):
        pass

    def fail(block: Any, x: Any) -> Any:
        if block.calls > 1:
            raise Mine("out of ideas")
        return block.linear(x)

    region = with_block(fail)
    loss = region(torch.randn(3, 8)).sum()
    with pytest.raises(Mine, match="out of ideas") as raised:
        loss.backward()
    if hasattr(raised.value, "add_note"):
        assert raised.value.__notes__ == ["in stage 2 (`1`) of a checkpointed region"]


def test_a_budget_too_small() -> None:
    region = rekindle.torch.checkpointed(blocks(), budget=100, runs=1)
    with pytest.raises(errors.BudgetTooSmall, match="the smallest budget it can meet is") as raised:
        region(torch.randn(3, 8))
    enough = raised.value.smallest_bytes
    rekindle.torch.checkpointed(blocks(), budget=enough, runs=1)(torch.randn(3, 8)).sum().backward()


def test_no_budget_and_no_rule() -> None:
    with pytest.raises(errors.ArgumentError, match="`optimal` needs a budget") as raised:
        rekindle.torch.checkpointed(blocks())
    assert raised.value.argument == "budget"
    with pytest.raises(errors.SizeError):
        rekindle.torch.checkpointed(blocks(), budget="64 parsecs")
    for wrong in (-1, 1.5, True):
        with pytest.raises(errors.ArgumentError, match="was expected, found"):
            rekindle.torch.checkpointed(blocks(), budget=wrong)


@pytest.mark.parametrize(
    ("argument", "wrong", "words"),
    [
        *(("margin", wrong, "expected a number of at least 0") for wrong in (-0.1, math.nan, math.inf, "5%", True)),
        *(("runs", wrong, "expected an integer of at least 1") for wrong in (0, -1, 1.5, "5", True)),
        *(("group", wrong, "expected an integer of at least 1") for wrong in (0, -2, 1.0, "2", True)),
        *(("strategy", wrong, "is not a solver: expected") for wrong in ("optimsl", "every-0", "every-K", "every-x", "")),
        *(("strategy", wrong, "a strategy such as") for wrong in (None, 3)),
    ],
)
def test_arguments_that_cannot_be_meant(argument: str, wrong: Any, words: str) -> None:
    given = {"strategy": "every-1", argument: wrong}
    with pytest.raises(errors.ArgumentError, match=words) as raised:
        rekindle.torch.checkpointed(blocks(), **given)
    assert raised.value.argument == argument
    if words == "is not a solver: expected":
        assert isinstance(raised.value, errors.UnknownName) and raised.value.found == wrong
        assert raised.value.nearest == ("optimal" if wrong == "optimsl" else "every-K" if wrong else None)
    with pytest.raises(errors.ArgumentError) as raised:
        rekindle.torch.auto(Mlp(), torch.randn(3, 32), **given)
    assert raised.value.argument == argument


@pytest.mark.parametrize("wiring", ["value", "first", "spread"])
def test_a_call_without_arguments(wiring: str) -> None:
    region = rekindle.torch.checkpointed(blocks(), strategy="every-1", wiring=wiring)
    for run in (region, torch.no_grad()(region.forward)):
        with pytest.raises(errors.ArgumentError, match="was called without arguments, expected what its first block takes"):
            run()


def test_a_plan_of_another_length() -> None:
    of_four = rekindle.torch.checkpointed(blocks(4), strategy="every-1")
    of_four(torch.randn(3, 8)).sum().backward()
    region = rekindle.torch.checkpointed(blocks(5), plan=of_four.plan)
    words = "the plan is for 4 stages, but the region has 5; plan the region again, or give it the stages the plan was made for"
    with pytest.raises(torch_errors.PlanLength, match=words):
        region(torch.randn(3, 8))


def test_a_profile_of_another_model() -> None:
    measured = rekindle.torch.checkpointed(blocks(4), budget="1MiB", runs=1)
    measured(torch.randn(3, 8)).sum().backward()
    with pytest.raises(torch_errors.OtherModel, match="the plan is for another model; the input: found 160 bytes, expected 96"):
        rekindle.torch.checkpointed(blocks(4), budget="1MiB", profile=measured.profile)(torch.randn(5, 8))
    with pytest.raises(errors.OtherModel, match="the name of stage 1: found x.0, expected 0"):
        rekindle.torch.checkpointed(blocks(4), budget="1MiB", profile=measured.profile, name="x")(torch.randn(3, 8))


def test_a_plan_that_is_not_of_the_profile_beside_it(tmp_path: Path) -> None:
    def measured(width: int) -> Any:
        layers = nn.Sequential(*[nn.Sequential(nn.Linear(8, width), nn.Linear(width, 8)) for _ in range(4)])
        region = rekindle.torch.checkpointed(layers, budget="1MiB", runs=1)
        region(torch.randn(3, 8)).sum().backward()
        return region

    one, other = measured(8), measured(16)
    one.save(tmp_path / "plan.json")
    for plan in (one.plan, tmp_path / "plan.json"):
        with pytest.raises(torch_errors.OtherModel, match="it was made for a profile with the fingerprint") as raised:
            rekindle.torch.checkpointed(blocks(4), plan=plan, profile=other.profile)
        assert (raised.value.found, raised.value.expected) == (one.plan.fingerprint, other.profile.fingerprint)
        rekindle.torch.checkpointed(blocks(4), plan=plan, profile=one.profile)


def test_a_plan_that_takes_more_than_the_budget(tmp_path: Path) -> None:
    made = rekindle.torch.checkpointed(blocks(4), budget="1MiB", runs=1)
    made(torch.randn(3, 8)).sum().backward()
    made.save(tmp_path / "plan.json")
    peak = made.plan.predicted.peak_bytes
    for given in ({"plan": made.plan, "profile": made.profile}, {"plan": tmp_path / "plan.json"}):
        region = rekindle.torch.checkpointed(blocks(4), budget=peak - 1, **given)
        words = rf"`optimal` takes .* at its peak \({peak} bytes\), but the budget is .* \({peak - 1} bytes\)"
        with pytest.raises(errors.OverBudget, match=words) as raised:
            region(torch.randn(3, 8))
        assert (raised.value.solver, raised.value.peak_bytes, raised.value.budget_bytes) == ("optimal", peak, peak - 1)
        assert not region.planned
        rekindle.torch.checkpointed(blocks(4), budget=peak, **given)(torch.randn(3, 8)).sum().backward()
    # What is there before the step begins counts, too; and what was measured where everything was tried.
    file = json.loads((tmp_path / "plan.json").read_text())
    for known, takes in (({"base_bytes": 1000}, peak + 1000), ({"base_bytes": 1000, "measured_peak_bytes": peak}, peak)):
        (tmp_path / "plan.json").write_text(json.dumps({**file, "known": known}))
        with pytest.raises(errors.OverBudget) as raised:
            rekindle.torch.checkpointed(blocks(4), budget=takes - 1, plan=tmp_path / "plan.json")(torch.randn(3, 8))
        assert raised.value.peak_bytes == takes
        rekindle.torch.checkpointed(blocks(4), budget=takes, plan=tmp_path / "plan.json")(torch.randn(3, 8)).sum().backward()
    # Without a profile nobody knows what a plan takes here.
    rekindle.torch.checkpointed(blocks(4), budget=1, plan=made.plan)(torch.randn(3, 8)).sum().backward()


def test_a_plan_that_cannot_run() -> None:
    profile = rekindle.Profile("m", "cpu", 1, [rekindle.StageProfile(str(i), 1, 1, 1, 1) for i in range(4)])
    actions = rekindle.plan(profile, solver="store-all").actions
    tape = [action.replace("tape 3", "tape 3 smaller") for action in actions]
    with_option = [rekindle.StageProfile(str(i), 1, 1, 1, 1, options=[rekindle.TapeOption("smaller", 1, 1, 1)]) for i in range(4)]
    plan = rekindle.Plan.of_actions(rekindle.Profile("m", "cpu", 1, with_option), tape)
    with pytest.raises(errors.IllegalPlan, match="smaller"):
        rekindle.torch.checkpointed(blocks(4), plan=plan)(torch.randn(3, 8))


def test_options_that_nobody_knows() -> None:
    with pytest.raises(errors.ArgumentError, match="`magic` is no option") as raised:
        rekindle.torch.checkpointed(blocks(), strategy="every-1", options="magic")
    assert raised.value.argument == "options"
    if not hasattr(torch, "compile"):
        with pytest.raises(torch_errors.DeviceAbsent, match="which does not compile"):
            rekindle.torch.checkpointed(blocks(), strategy="every-1", options="compile")


def test_a_whole_step_without_cuda() -> None:
    if torch.cuda.is_available():
        pytest.skip("CUDA is there")
    with pytest.raises(torch_errors.DeviceAbsent, match="the memory in use on cpu is not known"):
        rekindle.torch.auto(Mlp(), (torch.randn(3, 32),), "1GiB", whole_step=True)


@pytest.mark.parametrize("strategy", ["every-1", "optimal"])
def test_blocks_on_another_device(strategy: str) -> None:
    """Their dropout would draw other numbers when they are run again."""
    model = nn.Sequential(*[Block(lambda block, x: torch.dropout(block.linear(x), 0.5, True)) for _ in range(4)])
    model[2].to("meta")
    region = rekindle.torch.checkpointed(model, budget="1MiB", strategy=strategy)
    with pytest.raises(torch_errors.DeviceAbsent, match=r"stage 3 \(`2`\) lies on meta, but the region's input on cpu") as raised:
        region(torch.randn(3, 8))
    error = raised.value
    assert (error.stage, error.name, error.found, error.expected) == (3, "2", "meta", "cpu")
    assert [block.calls for block in model] == [0] * 4 and not region.planned


def test_blocks_asked_for_one_by_one() -> None:
    region = rekindle.torch.checkpointed(blocks(), strategy="every-1")
    assert list(region) == [region] and len(region) == 1 and region[0] is region
    with pytest.raises(IndexError, match="block 2 of a region was asked for by its number"):
        region[2]
    with pytest.raises(torch_errors.ChainNotFound, match="expected all of them"):
        region[1:]


def test_nothing_to_run() -> None:
    with pytest.raises(torch_errors.ChainNotFound, match="there is no block to run"):
        rekindle.torch.checkpointed([], strategy="every-1")
    with pytest.raises(torch_errors.ChainNotFound, match="`sideways` is no wiring"):
        rekindle.torch.checkpointed(blocks(), strategy="every-1", wiring="sideways")


def test_what_a_region_does_before_it_has_a_plan() -> None:
    region = rekindle.torch.checkpointed(blocks(), strategy="every-1")
    with pytest.raises(torch_errors.NotInstalled, match="has no plan yet"):
        region.report
