"""Stages that keep the results of costly calls, on the device or in host memory, and stages that go back in two parts."""

from __future__ import annotations

import gc
import json
import math
from typing import Any, List, Optional

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
import torch.nn.functional as F
from rekindle import _core
from rekindle.errors import ArgumentError
from rekindle.torch import keeping, keepsakes
from rekindle.torch.arrange import Arrangement, Kept, arranged, arrangements
from rekindle.torch.offload import Places
from test_torch_options import with_option
from test_torch_pinned import host, said  # noqa: F401 - a fixture
from torch import nn
from torch_models import ConvNet, Gpt, step, twins

torch.set_num_threads(1)

OPTIONS = ["attention", "products", "parts"]


def attention(q: Any, k: Any, v: Any, dropout: float = 0.0) -> Any:
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)
    # PyTorch 1.13, which gives the weights as well.
    return F._scaled_dot_product_attention(q, k, v, None, dropout)[0]


class Block(nn.Module):
    """A block with attention, and dropout behind it and within it."""

    def __init__(self, width: int = 32, heads: int = 4, dropout: float = 0.1, within: float = 0.0):
        super().__init__()
        self.heads, self.within = heads, within
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(dropout)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, dim=2))
        mixed = attention(q, k, v, self.within if self.training else 0.0)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))


class InPlace(Block):
    """Writes over what its products give."""

    def forward(self, x: Any) -> Any:
        hidden = self.up(self.norm_2(x))
        hidden.mul_(0.5)
        mixed = attention(*(self.out(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2),) * 3)
        if not hasattr(F, "scaled_dot_product_attention"):
            # Where autograd saves what attention gives PyTorch itself refuses this.
            mixed.mul_(2.0)
        return x + self.down(F.gelu(hidden)) + mixed.transpose(1, 2).reshape(x.shape)


class Row(nn.Module):
    def __init__(self, make: Any = Block, blocks: int = 4):
        super().__init__()
        self.blocks = nn.Sequential(*(make() for _ in range(blocks)))

    def forward(self, x: Any) -> Any:
        return self.blocks(x).square().mean()


def per_block(blocks: int, option: Optional[str] = None) -> rekindle.Plan:
    """Every block run again, as under PyTorch's own checkpoint."""
    options = [] if option is None else [rekindle.TapeOption(option, 1, 1, 1)]
    stages = [rekindle.StageProfile(str(i), 1, 1, 1, 1, options=options) for i in range(blocks)]
    actions: List[str] = ["keep x0"]
    for number in range(1, blocks + 1):
        actions.append(f"forward {number}")
        if number < blocks:
            actions.append(f"keep x{number}")
    for number in range(blocks, 0, -1):
        actions.append(" ".join(["tape", str(number), *([option] if option else [])]))
        actions.append(f"backward {number}")
        actions.append(f"drop x{number - 1}")
    return rekindle.Plan.of_actions(rekindle.Profile("m", "cpu", 1, stages), actions)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "run again"])
def test_gradients_are_plain_pytorchs(option: str, kept: bool) -> None:
    x = torch.randn(3, 10, 32, requires_grad=True)
    cases: Any = [
        (Row, 4, lambda model: model(x)),
        (lambda: Row(lambda: Block(within=0.3)), 4, lambda model: model(x)),
        (lambda: Row(InPlace), 4, lambda model: model(x)),
        (ConvNet, 5, lambda model: model(torch.ones(2, 3, 8, 8)).square().mean()),
        (Gpt, 5, lambda model: model(torch.zeros(2, 12, dtype=torch.long), torch.ones(2, 12, dtype=torch.long))),
    ]
    for make, count, run in cases:
        plain, ours = twins(make)
        plan = with_option(count, option) if kept else per_block(count, option)
        ours.blocks = rekindle.torch.checkpointed(ours.blocks, plan=plan, options=option)
        for _ in range(2):
            expected = step(plain, lambda: run(plain), (x,))
            assert step(ours, lambda: run(ours), (x,)).same_as(expected) == []


@pytest.mark.parametrize("option", OPTIONS)
def test_autocast(option: str) -> None:
    x = torch.randn(3, 10, 32)
    plain, ours = twins(Row)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, plan=with_option(4, option), options=option)
    with torch.autocast("cpu", torch.bfloat16):
        expected = step(plain, lambda: plain(x))
        assert step(ours, lambda: ours(x)).same_as(expected) == []


def test_what_is_kept_is_not_computed_again() -> None:
    """As PyTorch's profiler counts products, softmax (which is within attention) and GELU."""
    x = torch.randn(3, 10, 32)
    counts = {}
    for option in [None, *OPTIONS]:
        _, ours = twins(lambda: Row(blocks=2))
        plan = per_block(2) if option is None else with_option(2, option)
        region = rekindle.torch.checkpointed(ours.blocks, plan=plan, options=option)
        ours.blocks = region
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            ours(x).backward()
        found = {event.key: event.count for event in profiler.key_averages()}
        # From PyTorch 2 on attention is one call, with no softmax to be seen.
        attention = found.get("aten::_softmax", 0) or found.get("aten::_scaled_dot_product_flash_attention_for_cpu", 0)
        counts[option] = found.get("aten::addmm", 0), attention, found.get("aten::gelu", 0)
    assert counts[None][1] == 4 and counts["attention"][1] == 2, counts
    assert counts["products"][1] == 2 and counts["products"][0] == 8, counts
    # Of each block the first product alone is run again: the rest of the tape was kept.
    assert counts["parts"] == (10, 2, 2), counts
    assert counts["attention"][0] == counts[None][0] == 16, counts


def test_what_is_never_asked_for_is_not_kept() -> None:
    """A block's last product goes into its output alone."""
    block = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 64))
    region = rekindle.torch.checkpointed(nn.Sequential(block), budget="1GiB", runs=1, options="products")
    x = torch.randn(100, 32, requires_grad=True)
    region(x).sum().backward()
    (option,) = region.profile.stages[0].options
    # What the first product gave, and the output, which every tape counts.
    assert option.tape_bytes == 100 * 4 * (128 + 64)


@pytest.mark.parametrize("option", OPTIONS)
def test_tapes_are_smaller_and_are_let_go(option: str) -> None:
    _, ours = twins(lambda: Row(blocks=2))
    region = rekindle.torch.checkpointed(ours.blocks, budget="1GiB", runs=1, options=OPTIONS)
    x = torch.randn(3, 10, 32, requires_grad=True)
    region(x).sum().backward()
    stage = region.profile.stages[0]
    sizes = {found.name: found.tape_bytes for found in stage.options}
    assert stage.output_bytes < sizes["attention"] < sizes["products"] < stage.tape_bytes
    assert stage.output_bytes < sizes["parts"] < stage.tape_bytes
    gc.collect()
    before = sum(1 for found in gc.get_objects() if isinstance(found, torch.Tensor))
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, plan=with_option(2, option), options=option)
    for _ in range(3):
        ours(x).backward()
        ours.zero_grad()
    loss = ours(x)
    del loss
    gc.disable()
    try:
        # Also of a step that is given up, without the collector.
        ours(x)
        after = sum(1 for found in gc.get_objects() if isinstance(found, torch.Tensor))
    finally:
        gc.enable()
    assert after <= before + 4


def test_a_block_that_calls_something_else_is_refused() -> None:
    class Fickle(Block):
        turn = 0

        def forward(self, x: Any) -> Any:
            Fickle.turn += 1
            if Fickle.turn % 2 == 0:
                return x + self.down(self.up(x))
            return super().forward(x)

    torch.manual_seed(0)
    for option in ["attention", "products"]:
        Fickle.turn = 0
        region = rekindle.torch.checkpointed(nn.Sequential(Fickle()), plan=with_option(1, option), options=option)
        with pytest.raises(rekindle.torch.StageChanged, match="when it was recomputed"):
            region(torch.randn(2, 10, 32, requires_grad=True)).sum().backward()


def test_a_parameter_that_is_changed_between_is_refused() -> None:
    for option in OPTIONS:
        blocks = nn.Sequential(Block())
        region = rekindle.torch.checkpointed(blocks, plan=with_option(1, option), options=option)
        loss = region(torch.randn(2, 10, 32)).sum()
        with torch.no_grad():
            blocks[0].qkv.weight.add_(1.0)
        with pytest.raises(rekindle.torch.KeptChanged, match="a parameter"):
            loss.backward()


def test_words_of_wrong_options() -> None:
    with pytest.raises(ArgumentError, match="`attentoin` is no option"):
        rekindle.torch.checkpointed(nn.Sequential(Block()), budget=1, options="attentoin")
    if hasattr(torch, "compile"):
        with pytest.raises(ArgumentError, match="expected the one or the other"):
            rekindle.torch.checkpointed(nn.Sequential(Block()), budget=1, options=["attention", 0.5])


def test_a_block_with_a_region_in_it_has_no_such_options() -> None:
    inner = rekindle.torch.checkpointed(nn.Sequential(Block(), Block()), strategy="every-1")
    region = rekindle.torch.checkpointed(nn.Sequential(Block(), inner), strategy="store-all", options=OPTIONS)
    assert [list(stage.ways) for stage in region.stages] == [OPTIONS, []]


# Host memory.


def in_host_memory(limit: int = 1 << 30) -> Places:
    """Places whose pinned memory is plain memory; streams only write down what they are told."""
    places = Places(host=limit)
    memory = host(limit)
    places.storage, places.tickets, places.pinned = _core.Storage(), memory.tickets, memory
    places.storage.add_python("host", memory.store)
    speed = {"write_bytes_per_second": 10**11, "read_bytes_per_second": 10**11}
    tier = {"name": "host", "capacity_bytes": limit, **speed}
    places.open = lambda profile, like: profile.update(tiers=[tier])  # type: ignore[method-assign]
    places.takes_keepsakes = lambda device: True  # type: ignore[method-assign]
    return places


def some_arrangement(levels: dict) -> Arrangement:
    found = Arrangement()
    found.levels = levels
    found.releases = {number: number + 2 for number in levels}
    for number in levels:
        found.fetches.setdefault(number + 1, []).append(number)
    return found


@pytest.mark.parametrize("limit", [1 << 30, 50000], ids=["enough", "too small"])
@pytest.mark.parametrize("option", [None, "parts"])
def test_keepsakes_come_back(
    said: List[str], monkeypatch: pytest.MonkeyPatch, option: Optional[str], limit: int  # noqa: F811
) -> None:
    monkeypatch.setattr(keepsakes.Keepsakes.__init__, "__defaults__", (1024,))
    plain, ours = twins(lambda: Row(blocks=5))
    region = rekindle.torch.checkpointed(ours.blocks, plan=per_block(5, option), options=option)
    places = in_host_memory(limit)
    region.planner.places = places
    ours.blocks = region
    x = torch.randn(3, 10, 32, requires_grad=True)
    for turn in range(3):
        expected = step(plain, lambda: plain(x), (x,))
        assert step(ours, lambda: ours(x), (x,)).same_as(expected) == []
        if turn == 0:
            region.current.arrangement = some_arrangement({1: "attention", 2: "products", 3: "attention", 4: "attention"})
    assert any("back waits for" in line for line in said)
    memory = places.pinned
    lent = sum(len(buffers) * size for size, buffers in memory._free.items())
    assert memory.allocated == lent <= limit, "every buffer was given back"
    assert not memory.tickets._boundaries


def test_when_they_travel(said: List[str], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Out when its stage has run, gone two stages later, back when the next stage goes back."""
    monkeypatch.setattr(keepsakes.Keepsakes.__init__, "__defaults__", (1024,))
    _, ours = twins(lambda: Row(lambda: Block(dropout=0.0), blocks=4))
    region = rekindle.torch.checkpointed(ours.blocks, plan=per_block(4))
    region.planner.places = in_host_memory()
    ours.blocks = region
    x = torch.randn(3, 10, 32, requires_grad=True)
    ours(x).backward()
    region.current.arrangement = some_arrangement({1: "attention"})
    said.clear()
    running = Block.forward

    def told(self: Any, given: Any) -> Any:
        said.append(f"block {list(region.container).index(self) + 1} runs")
        return running(self, given)

    monkeypatch.setattr(Block, "forward", told)
    ours(x).backward()
    assert [line for line in said if "compute waits" in line or "runs" in line or line.startswith("back waits for out")] == [
        "block 1 runs",
        "block 2 runs",
        "compute waits for out 1",
        "block 3 runs",
        "block 4 runs",
        "block 4 runs",
        "block 3 runs",
        "block 2 runs",
        "back waits for out 1",
        "compute waits for back 1",
        "block 1 runs",
    ]


def test_a_plan_uses_them_where_that_is_faster(said: List[str], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(keepsakes.Keepsakes.__init__, "__defaults__", (1024,))
    monkeypatch.setattr("rekindle.torch.times.SMALL", 1024)
    plain, ours = twins(lambda: Row(blocks=6))
    x = torch.randn(4, 64, 32, requires_grad=True)
    region = rekindle.torch.checkpointed(ours.blocks, budget="1GiB", runs=1)
    region(x).sum().backward()
    least = rekindle.smallest_budget(region.profile)
    region = rekindle.torch.checkpointed(ours.blocks, budget=least * 2, runs=3, options=OPTIONS)
    region.planner.places = in_host_memory()
    ours.blocks = region
    for _ in range(2):
        expected = step(plain, lambda: plain(x), (x,))
        assert step(ours, lambda: ours(x), (x,)).same_as(expected) == []
    known = region.current.known["kept"]
    assert all(set(kept) >= {"attention", "products"} for kept in known)
    assert all(0 < kept["attention"].size < kept["products"].size for kept in known)
    assert region.plan.predicted.peak_bytes <= least * 2


# Who keeps what, and when.

MIB = 1 << 20


def a_profile(count: int, forward: int = 100, backward: int = 200) -> Any:
    stage = {"output_bytes": MIB, "tape_bytes": 10 * MIB, "forward_ns": forward, "backward_ns": backward}
    stages = [{"name": str(i), **stage, "options": [{"name": "parts", "tape_bytes": 7 * MIB, "forward_ns": forward,
               "backward_ns": backward, "backward_extra_bytes": 5}]} for i in range(count)]
    tier = {"name": "host", "capacity_bytes": 1 << 40, "write_bytes_per_second": 10**12, "read_bytes_per_second": 10**12}
    return {"format": "rekindle.profile/1", "model": "m", "device": "d", "input_bytes": MIB, "stages": stages, "tiers": [tier]}


def test_everything_is_gone_in_time() -> None:
    profile = a_profile(12)
    # Attention takes half of a stage's time to travel, all products twice as long as a stage.
    known = [{"attention": Kept(45_000, 100, 50), "products": Kept(180_000, 100, 20)}] * 12
    found = list(arrangements(profile, known, 10**12, 10**12, 1 << 40))
    assert [set(each.levels.values()) for each in found] == [{"attention"}, {"products"}, {"products", "attention"}]
    assert [len(each.levels) for each in found] == [11, 5, 11]
    for each in found:
        assert 12 not in each.levels, "the last stage would wait for what it kept"
        assert each.share_out <= 0.98
        # One after the other over a link that is counted on for nineteen parts of twenty.
        link = 0.0
        for number, level in each.levels.items():
            link = max(link, 100.0 * number) + known[0][level].size / 950
            assert link <= 1200 and each.released(number) == min(math.ceil(link / 100) + 1, 13)
            (at,) = [at for at, numbers in each.fetches.items() if number in numbers]
            assert at > number
    assert all(found[0].released(number) == number + 2 for number in range(1, 12))
    # A link of nothing carries nothing; nor does one with no room at its end.
    assert not list(arrangements(profile, known, 10**6, 10**6, 1 << 40))
    assert not list(arrangements(profile, known, 10**12, 10**12, 1000))


def test_what_travels_is_counted() -> None:
    profile, size = a_profile(4), 45_000
    known = [{"attention": Kept(size, 100, 50)}] * 4
    (found,) = list(arrangements(profile, known, 10**12, 10**12, 1 << 40))
    changed = arranged(profile, known, found, {number: size - 10 for number in range(1, 5)})
    stages = changed["stages"]
    # Its own, and that of the stage before, which is on its way; the last one keeps nothing.
    assert [stage["forward_extra_bytes"] for stage in stages] == [size, 2 * size, 2 * size, size]
    # What the next one to go back needs comes meanwhile; a backward in two parts takes it in its second.
    assert [stage.get("backward_extra_bytes", 0) for stage in stages] == [0, size, size, size]
    assert [stage["options"][0]["backward_extra_bytes"] for stage in stages] == [5, 15, 15, 15]
    assert [stage.get("unread_ns", 0) for stage in stages] == [50, 50, 50, 0]
    (tier,) = changed["tiers"]
    assert tier["capacity_bytes"] == (1 << 40) - 3 * size
    # A boundary has what is left of the link, behind one of the others.
    left = 1 - 3 * (size / 950) / 400
    assert tier["write_bytes_per_second"] == pytest.approx(MIB / (MIB / (10**12 * left) + size / (0.95 * 10**12)), rel=1e-6)
    assert "forward_extra_bytes" not in profile["stages"][0], "the measured profile stays what it was"
    rekindle.Profile.from_json(json.dumps(changed))


def test_calls_that_draw_numbers_are_made_again() -> None:
    function = next(iter(keeping.ATTENTION_CALLS))
    q = torch.zeros(1)
    assert keeping.may_be_left_out(function, (q, q, q), {})
    assert keeping.may_be_left_out(function, (q, q, q, None, 0.0), {})
    assert not keeping.may_be_left_out(function, (q, q, q, None, 0.1), {})
    assert not keeping.may_be_left_out(function, (q, q, q), {"dropout_p": 0.1})
    assert not keeping.may_be_left_out(torch.mm, (q, q), {"out": q})


def test_a_step_that_takes_more_than_was_predicted_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.torch import api
    from rekindle.torch.whole_step import Surroundings

    nothing = dict.fromkeys(
        ("tape_bytes", "forward_extra_bytes", "backward_extra_bytes", "parameter_gradient_bytes", "forward_ns", "backward_ns"), 0
    )
    x = torch.randn(3, 10, 32, requires_grad=True)
    model = Row(blocks=6)
    region = rekindle.torch.checkpointed(model.blocks, budget="1GiB", runs=1)
    region(x).sum().backward()
    least = rekindle.smallest_budget(region.profile)
    budget = int(least * 1.1)
    region = rekindle.torch.checkpointed(model.blocks, budget=budget, runs=1, margin=0.01)
    planner = region.planner
    planner.surroundings, planner.surveyed_bytes = Surroundings(0, nothing, nothing, to_come=7), 3 * 10 * 32 * 4
    arguments: Any = []
    planning = region._planned_for
    monkeypatch.setitem(region.__dict__, "_planned_for", lambda *given: arguments.append(given) or planning(*given))
    region(x).sum().backward()
    planned, usable = region.current, int(budget / 1.01)
    assert planner.usable() == usable
    before = region.plan.predicted.peak_bytes
    peaks = iter([usable - 7 + 5000, usable, usable - 3, usable - 7 - 1, usable - 8, usable - 9])

    def one_step(*_: Any) -> Any:
        # What was there before the step began does not count.
        return type("Watch", (), {"peak": {"step begins": 99 * budget, "loss": next(peaks), "step ends": 3}})

    monkeypatch.setattr(api, "one_step", one_step)
    found = api._tried(model, lambda: None, region, planned, planner, arguments[-1])
    assert found is region.current is not planned
    assert planner.reserve == 5000 and planner.measured is None
    assert region.plan.predicted.peak_bytes <= usable - 5000 < usable and region.plan.predicted.peak_bytes <= before
    assert found.known["tried_peak_bytes"] == usable - 1
    # What cannot be made to fit is an error, as it is before anything is tried.
    monkeypatch.setattr(api, "one_step", lambda *_: type("Watch", (), {"peak": {"loss": 10 * budget}}))
    with pytest.raises(rekindle.BudgetTooSmall, match="1.0% stay free"):
        api._tried(model, lambda: None, region, found, planner, arguments[-1])


def test_a_budget_that_only_the_margin_refuses_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    from rekindle.torch import api
    from rekindle.torch.planner import MARGIN
    from rekindle.torch.whole_step import Surroundings

    names = "tape_bytes", "forward_extra_bytes", "backward_extra_bytes", "parameter_gradient_bytes", "forward_ns", "backward_ns"
    nothing, base = dict.fromkeys(names, 0), 1 << 26
    x = torch.randn(3, 10, 32, requires_grad=True)
    model = Row(blocks=6)
    arguments: Any = []

    def of(budget: int, is_tried: bool, exact: bool = False, **more: Any) -> Any:
        model.zero_grad(set_to_none=True)
        made = rekindle.torch.checkpointed(model.blocks, budget=budget, runs=1, **more)
        made.planner.surroundings, made.planner.surveyed_bytes = Surroundings(base, nothing, nothing), 3 * 10 * 32 * 4
        made.planner.is_tried, made.planner.is_exact = is_tried, exact
        planning = made._planned_for
        made.__dict__["_planned_for"] = lambda *given: arguments.append(given) or planning(*given)
        made(x).sum().backward()
        return made

    large = of(1 << 30, False)
    least = base + rekindle.smallest_budget(large.profile)
    assert base * MARGIN > 4096, "the margin is larger than what is left"
    budget = least + 4096
    with pytest.raises(rekindle.BudgetTooSmall, match="0.2% stay free") as refused:
        of(budget, False)
    assert refused.value.smallest_bytes > budget
    with pytest.raises(rekindle.BudgetTooSmall):
        of(budget, True, margin=0.002)
    region = of(budget, True)
    planner = region.planner
    assert planner.to_the_brim and planner.usable() == budget
    assert region.report.predicted_peak_bytes <= budget
    # With room for the margin there is one.
    roomy = of(int(least * 1.01), True)
    assert not roomy.planner.to_the_brim and roomy.report.predicted_peak_bytes <= int(least * 1.01) / (1 + MARGIN)
    # Where the allocator hands out what is asked for there is nothing to leave free, unless somebody insists.
    exact = of(int(least * 1.01), True, exact=True)
    assert exact.planner.to_the_brim and exact.planner.usable() == int(least * 1.01)
    assert exact.report.predicted_peak_bytes <= int(least * 1.01)
    assert not of(int(least * 1.01), True, exact=True, margin=0.002).planner.to_the_brim
    assert not of(int(least * 1.01), False, exact=True).planner.to_the_brim, "of shapes that are not tried"
    # What leaves nothing free is tried more often.
    for made, count in ((exact, api.FILLED), (roomy, api.TRIED)):
        tried: List[int] = []
        # What keeps everything is tried in another way.
        made.current.keeps_all = False
        watched = type("Watch", (), {"peak": {"loss": 1}})
        monkeypatch.setattr(api, "one_step", lambda *_, tried=tried, watched=watched: tried.append(1) or watched)
        api._tried(model, lambda: None, made, made.current, made.planner, arguments[-1])
        assert len(tried) == count
    assert api.FILLED > api.TRIED
    # Below the smallest there is nothing to try.
    with pytest.raises(rekindle.BudgetTooSmall, match="the batch\\)\nhint") as refused:
        of(least - 4096, True)
    assert abs(refused.value.smallest_bytes - least) <= 1
    # The step that is tried is the judge.
    seen = lambda peak: lambda *_: type("Watch", (), {"peak": {"loss": peak}})  # noqa: E731
    monkeypatch.setattr(api, "one_step", seen(budget))
    assert api._tried(model, lambda: None, region, region.current, planner, arguments[-1]).known["tried_peak_bytes"] == budget
    monkeypatch.setattr(api, "one_step", seen(budget + 1))
    # Of 4096 bytes three can be given up, each time one; the fourth step that takes too much is the last.
    with pytest.raises(rekindle.BudgetTooSmall, match="under the last of 4 took") as refused:
        api._tried(model, lambda: None, region, region.current, planner, arguments[0])
    assert refused.value.smallest_bytes == budget + 1


def test_few_options_need_less_room() -> None:
    from rekindle.torch.arrange import with_options

    profile = a_profile(2)
    for stage in profile["stages"]:
        stage["forward_extra_bytes"] = 5 * MIB
        option = {"name": "attention", "tape_bytes": 2 * MIB, "forward_ns": 1, "backward_ns": 2, "backward_extra_bytes": 9 * MIB}
        stage["options"].append(option)
    extras = [{"": 10, "parts": 30, "attention": 800}] * 2
    every, few = with_options(profile, extras, None), with_options(profile, extras, ["parts"])
    assert [stage["taped_extra_bytes"] for stage in every["stages"]] == [800, 800]
    assert [stage["taped_extra_bytes"] for stage in few["stages"]] == [30, 30]
    assert [[option["name"] for option in stage["options"]] for stage in few["stages"]] == [["parts"]] * 2
    kept = with_options(profile, [{**extras[0], "parts+products": 500, "+products": 40}] * 2, ["parts"], ["products"])
    assert [stage["taped_extra_bytes"] for stage in kept["stages"]] == [500, 500]
    # An option may have the name of what is kept.
    both = with_options(profile, [{**extras[0], "+attention": 50, "parts+attention": 60}] * 2, ["parts"], ["attention"])
    assert [stage["taped_extra_bytes"] for stage in both["stages"]] == [60, 60]
    assert "taped_extra_bytes" not in with_options(profile, [{}, {}], None)["stages"][0], "nobody counted"
    sizes = [rekindle.smallest_budget(rekindle.Profile.from_json(json.dumps(each))) for each in (profile, few)]
    assert sizes[1] < sizes[0]


def test_what_the_allocator_hands_out() -> None:
    from rekindle.torch.whole_step import allocated_bytes

    assert allocated_bytes(5 * MIB + 1) == 5 * MIB + 1
    # 1600 by 6400 in two bytes: 19.5 MiB are 20, 18.5 are not 20.
    assert allocated_bytes(1600 * 6400 * 2) == 20 * MIB
    assert allocated_bytes(18 * MIB + MIB // 2) == 18 * MIB + MIB // 2
    assert allocated_bytes(20 * MIB) == 20 * MIB


def test_only_the_devices_times_count_where_it_is_the_limit() -> None:
    from rekindle.torch.recipes import Recipe
    from rekindle.torch.times import Ahead, Times, Took, _device_time, _followed, _time

    def times(cpu: int, kept_cpu: int) -> Times:
        took = Took(device=100, cpu=cpu, fastest=100, slowest=100)
        kept = Took(device=50, cpu=kept_cpu, fastest=50, slowest=50)
        levels = {"attention": (1, kept, kept), "1 results": (1, kept, kept)}
        return Times(took, {None: (took, took)}, (took, took), levels, {"1 results": Recipe([])}, 0, {})

    def ahead(of: Times, around: int = 0) -> Ahead:
        return Ahead([of] * 4, around, haunts=True)

    # Each stage takes the device 300: two runs and a backward.
    assert ahead(times(60, 30)).usually and ahead(times(60, 30)).with_way("attention", kept=True)
    assert ahead(times(60, 30)).time_of(None) is _device_time
    assert not ahead(times(90, 30)).usually and ahead(times(90, 30)).time_of(None) is _time
    # What lies around the region gives the CPU time, too.
    assert ahead(times(90, 30), 400).usually
    # What is kept costs the CPU time. Then that way takes what it takes the CPU, and others do not.
    slow = times(60, 130)
    assert ahead(slow).usually and not ahead(slow).with_way("attention", kept=True)
    assert ahead(slow).time_of("attention", kept=True) is _time
    assert set(_followed(slow, ahead(slow))["kept"]) == {"attention"} and _followed(slow, ahead(slow))["recipes"] == {}
    assert set(_followed(times(60, 30), ahead(times(60, 30)))["kept"]) == {"attention", "1 results"}
    assert set(_followed(times(90, 130), ahead(times(90, 130)))["kept"]) == {"attention", "1 results"}, "it is behind anyway"
    # So does a tape of which a part is made again when it goes back: as an option of the same name, which is another way.
    part = Took(device=100, cpu=120, fastest=100, slowest=100)
    usual = times(60, 30)
    of = ahead(usual._replace(taped={**usual.taped, "attention": (part, part)}))
    assert of.usually and not of.with_way("attention") and of.with_way("attention", kept=True)
    assert of.time_of("attention") is _time
