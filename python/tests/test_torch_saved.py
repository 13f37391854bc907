"""Plans that are saved run as those that were made."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
import torch.nn.functional as F
from rekindle.errors import ArgumentError, PlanError
from rekindle.torch import recipes
from rekindle.torch.saved import FORMAT, Saved, function_named, name_of_function
from test_torch_keeping import OPTIONS, Block, Row, in_host_memory, per_block, some_arrangement
from test_torch_pinned import said  # noqa: F401 - a fixture
from test_torch_recipes import Rotary, small, studied  # noqa: F401 - a fixture
from torch import nn
from torch_models import step, twins

torch.set_num_threads(1)


def told(region: Any, x: Any, said: List[str]) -> List[str]:  # noqa: F811
    """What a step does: which blocks run and call what, and what travels when."""
    # The first step makes the buffers that others use again.
    region(x).sum().backward()
    said.clear()
    with torch.autograd.profiler.profile() as profile:
        region(x).sum().backward()
    events = sorted(profile.function_events, key=lambda event: event.time_range.start)
    done = [event.name for event in events if event.name in ("aten::linear", "aten::gelu", "aten::native_layer_norm")]
    # Events are numbered from the beginning of the session: from the beginning of the step, here.
    numbers: Dict[str, int] = {}
    for line in said:
        *words, number = line.split()
        if words[-1] == "records":
            numbers.setdefault(words[0], int(number))
    return done + [_renumbered(line, numbers) for line in said]


def _renumbered(line: str, first: Dict[str, int]) -> str:
    *words, number = line.split()
    stream = words[0] if words[-1] == "records" else words[-1]
    return " ".join([*words, str(int(number) - first[stream])])


def with_keepsakes(ours: Any, x: Any, late: bool = False) -> Any:
    """A region that keeps results in host memory, as a plan for a GPU does."""
    engine, _ = studied(copy.deepcopy(ours.blocks[0]), x.detach())
    levels = list(engine.recipes[1])
    region = rekindle.torch.checkpointed(ours.blocks, plan=per_block(5))
    region.planner.places = in_host_memory()
    region(x).sum().backward()
    arrangement = some_arrangement({1: levels[0], 2: levels[-1], 3: levels[0]})
    if late:
        arrangement.releases[3], arrangement.late_bytes = 7, 1000
    region.current.arrangement = arrangement
    region.current.known["recipes"] = {number: engine.recipes[1] for number in range(1, 6)}
    region.current.known["levels"] = arrangement.levels
    return region


def test_what_is_kept_in_host_memory_is_kept_again(said: List[str], small: None, tmp_path: Path) -> None:  # noqa: F811
    plain, ours = twins(lambda: Row(lambda: Block(dropout=0.0), blocks=5))
    x = torch.randn(3, 10, 32, requires_grad=True)
    made = with_keepsakes(ours, x)
    path = tmp_path / "plan.json"
    made.save(path)
    again = rekindle.torch.checkpointed(ours.blocks, plan=path)
    again.planner.places = in_host_memory()
    again(x).sum().backward()
    expected, found = told(made, x, said), told(again, x, said)
    assert found == expected and any("out" in line for line in said)
    # Less than without: what is kept is not computed again.
    assert found.count("aten::linear") < told(bare(ours, x), x, said).count("aten::linear")
    assert str(again.report) == str(made.report) and "results to host" in str(again.report)
    assert again.plan == made.plan
    ours.blocks = again
    for _ in range(2):
        wanted = step(plain, lambda: plain(x), (x,))
        assert step(ours, lambda: ours(x), (x,)).same_as(wanted) == []


def bare(ours: Any, x: Any) -> Any:
    """The same plan without keepsakes."""
    region = rekindle.torch.checkpointed(ours.blocks, plan=per_block(5))
    region(x).sum().backward()
    return region


def test_what_is_late_waits_for_the_model_only_where_it_tells(said: List[str], small: None, tmp_path: Path) -> None:  # noqa: F811
    _, ours = twins(lambda: Row(lambda: Block(dropout=0.0), blocks=5))
    x = torch.randn(3, 10, 32, requires_grad=True)
    made = with_keepsakes(ours, x, late=True)
    path = tmp_path / "plan.json"
    made.save(path)
    again = rekindle.torch.checkpointed(ours.blocks, plan=path)
    again.planner.places = in_host_memory()
    said.clear()
    loss = again(x).sum()
    assert len([line for line in said if line.startswith("compute waits for out")]) == 3, "all are gone when the region is through"
    assert again.current.arrangement.late_bytes == 0 and again.current.arrangement.releases[3] == 6
    loss.backward()
    hearing = rekindle.torch.checkpointed(ours.blocks, plan=path)
    hearing.planner.places, hearing.planner.is_told = in_host_memory(), True
    said.clear()
    loss = hearing(x).sum()
    assert len([line for line in said if line.startswith("compute waits for out")]) == 2
    hearing.returned()
    assert len([line for line in said if line.startswith("compute waits for out")]) == 3
    loss.backward()


def test_auto_tells_a_saved_plan_when_the_model_returns(
    said: List[str], small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    _, ours = twins(lambda: Row(lambda: Block(dropout=0.0), blocks=5))
    x = torch.randn(3, 10, 32, requires_grad=True)
    with_keepsakes(ours, x, late=True).save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text().replace('"name": "', '"name": "blocks.')
    (tmp_path / "plan.json").write_text(text)
    monkeypatch.setattr("rekindle.torch.api.Places", lambda *_: in_host_memory())
    installed = rekindle.torch.auto(ours, x, plan=tmp_path / "plan.json", loss=lambda y: y)
    assert len(ours._forward_hooks) == 1 and installed.region.current.arrangement.late_bytes == 1000
    said.clear()
    ours(x).backward()
    assert len(installed.region.late) == 0 and any("compute waits for out" in line for line in said)
    installed.remove()
    assert not ours._forward_hooks


def test_without_host_memory_it_is_refused(said: List[str], small: None, tmp_path: Path) -> None:  # noqa: F811
    _, ours = twins(lambda: Row(lambda: Block(dropout=0.0), blocks=5))
    x = torch.randn(3, 10, 32, requires_grad=True)
    with_keepsakes(ours, x).save(tmp_path / "plan.json")
    for places in ({}, {"host": "1GiB"}):
        with pytest.raises(ArgumentError, match="keeps results in host memory beside a CUDA device") as caught:
            rekindle.torch.checkpointed(ours.blocks, plan=tmp_path / "plan.json", **places)(x)
        assert caught.value.argument == "host"


@pytest.mark.parametrize("budget", ["smallest", "between", "1GiB"])
def test_a_measured_plan_runs_as_it_did(budget: str, tmp_path: Path, said: List[str]) -> None:  # noqa: F811
    plain, ours = twins(lambda: Row(blocks=6))
    x = torch.randn(3, 10, 32, requires_grad=True)
    # With room for everything, nothing but the time of one run would say that no option is faster.
    options = OPTIONS if budget != "1GiB" else None
    made = rekindle.torch.checkpointed(ours.blocks, budget="1GiB", runs=1, options=options)
    made(x).sum().backward()
    if budget != "1GiB":
        least = rekindle.smallest_budget(made.profile)
        most = rekindle.plan(made.profile, solver="store-all").predicted.peak_bytes
        size = least if budget == "smallest" else (least + most) // 2
        made = rekindle.torch.checkpointed(ours.blocks, budget=size, runs=1, options=options)
        try:
            made(x).sum().backward()
        except rekindle.BudgetTooSmall as error:
            # Measured anew, it is a little larger.
            made = rekindle.torch.checkpointed(ours.blocks, budget=error.smallest_bytes, runs=1, options=options)
            made(x).sum().backward()
    path = tmp_path / "plan.json"
    made.save(path)
    again = rekindle.torch.checkpointed(ours.blocks, plan=str(path), options=options)
    again(x).sum().backward()
    one, other = made.current, again.current
    assert (one.keeps_all, one.haunted, one.parted) == (other.keeps_all, other.haunted, other.parted)
    assert one.keeps_all == (budget == "1GiB")
    assert again.plan == made.plan and again.profile == made.profile
    assert str(again.report) == str(made.report)
    assert told(again, x, said) == told(made, x, said)
    # In bare files, too: what a second run was measured to pay for is in the profile.
    made.plan.save(tmp_path / "bare.json")
    made.profile.save(tmp_path / "profile.json")
    files = {"plan": tmp_path / "bare.json", "profile": tmp_path / "profile.json"}
    plainly = rekindle.torch.checkpointed(ours.blocks, options=options, **files)
    plainly(x).sum().backward()
    assert plainly.current.haunted == made.current.haunted
    ours.blocks = again
    expected = step(plain, lambda: plain(x), (x,))
    assert step(ours, lambda: ours(x), (x,)).same_as(expected) == []


def test_a_plan_of_another_model_is_refused(tmp_path: Path) -> None:
    made = rekindle.torch.checkpointed(Row(blocks=3).blocks, budget="1GiB", runs=1)
    with pytest.raises(rekindle.torch.NotInstalled):
        made.save(tmp_path / "plan.json")
    x = torch.randn(3, 10, 32)
    made(x).sum().backward()
    made.save(tmp_path / "plan.json")
    with pytest.raises(rekindle.torch.PlanLength):
        rekindle.torch.checkpointed(Row(blocks=4).blocks, plan=tmp_path / "plan.json")(x)
    with pytest.raises(rekindle.torch.OtherModel, match="the input"):
        rekindle.torch.checkpointed(Row(blocks=3).blocks, plan=tmp_path / "plan.json")(torch.randn(4, 10, 32))
    with pytest.raises(rekindle.torch.OtherModel, match="the name of stage 1"):
        rekindle.torch.checkpointed(Row(blocks=3).blocks, plan=tmp_path / "plan.json", name="other")(x)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    made = rekindle.torch.checkpointed(Row(blocks=3).blocks, budget="1GiB", runs=1)
    made(torch.randn(3, 10, 32)).sum().backward()
    path = tmp_path / "plan.json"
    made.save(path)
    good = path.read_text()
    assert json.loads(good)["format"] == FORMAT
    assert Saved.from_json(good).to_json() == good.rstrip("\n")
    for wrong in (
        good.replace(FORMAT, "rekindle.torch-plan/2"),
        good.replace('"keeps_all"', '"keeps_most"'),
        good.replace('"run_again_unread": [', '"run_again_unread": ["x", '),
        good.replace("rekindle.plan/1", "rekindle.plan/9"),
        json.dumps({**json.loads(good), "keepsakes": {"levels": {}}}),
        json.dumps({**json.loads(good), "keepsakes": 3}),
        good[: len(good) // 2],
        "",
    ):
        path.write_text(wrong)
        with pytest.raises(PlanError):
            rekindle.torch.checkpointed(Row(blocks=3).blocks, plan=path)
    with pytest.raises(FileNotFoundError):
        rekindle.torch.checkpointed(Row(blocks=3).blocks, plan=tmp_path / "none.json")
    assert [file.name for file in tmp_path.iterdir()] == ["plan.json"], "nothing half-written is left"


def test_every_call_of_a_block_has_a_name(small: None) -> None:  # noqa: F811
    seen = 0
    for block in (Block(dropout=0.0), Rotary()):
        engine, _ = studied(block, torch.randn(3, 10, 32))
        for recipe in engine.recipes[1].values():
            for function, _ in recipe.steps:
                assert function_named(name_of_function(function)) == function
                seen += 1
    assert seen > 50
    for function in (F.gelu, torch.Tensor.view, torch.Tensor.shape.__get__, torch.add, torch.Tensor.__add__, F.linear, torch.cat):
        assert function_named(name_of_function(function)) == function
    with pytest.raises(rekindle.torch.NotSaved, match="`mine`"):

        def mine() -> None: ...

        name_of_function(mine)
    with pytest.raises(rekindle.torch.OtherModel, match="torch.no_such"):
        function_named("torch.no_such.function")
    with pytest.raises(rekindle.torch.OtherModel, match="os.system"):
        function_named("os.system")
