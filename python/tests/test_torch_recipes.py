"""Stages that were studied: what a second run leaves out, what is kept for that, and who is not studied."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
import torch.nn.functional as F
from rekindle.torch import errors as torch_errors
from rekindle.torch import keepsakes, measuring, recipes
from rekindle.torch.arrange import Arrangement, Kept, arranged, arrangements, fits
from rekindle.torch.engine import Boundary
from rekindle.torch.random_state import Generators
from rekindle.torch.recipes import KEEP, RUN, SKIP, Recipe, Seen, levels_of, name_of, needed
from rekindle.torch.stage import Stage
from rekindle.torch.trees import TENSOR
from rekindle.torch.whole_step import Surroundings, Watch, surroundings
from rekindle.torch.wiring import Call
from test_torch_keeping import Block, Row, a_profile, attention, in_host_memory, per_block, some_arrangement
from test_torch_pinned import host, said  # noqa: F401 - a fixture
from torch import nn
from torch_models import GptBlock, step, twins

torch.set_num_threads(1)


class Rotary(Block):
    """As in a Llama: what attention is given is costly to make, and autograd saves none of the way there."""

    def __init__(self, width: int = 32, heads: int = 4):
        super().__init__(width, heads, dropout=0.0)
        self.register_buffer("cosine", torch.randn(width // heads))

    def rotated(self, x: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return x * self.cosine + torch.cat((-second, first), dim=-1) * self.cosine

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm_1(x)).chunk(3, dim=2))
        mixed = attention(self.rotated(q), self.rotated(k), v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.silu(self.up(self.norm_2(x))))


class Frozen(Rotary):
    """Some of it is not trained."""

    def __init__(self) -> None:
        super().__init__()
        for parameter in (*self.qkv.parameters(), *self.norm_1.parameters(), self.up.bias):
            parameter.requires_grad_(False)


class Looking(Block):
    """Looks at its values, and goes on according to them."""

    def forward(self, x: Any) -> Any:
        hidden = self.up(self.norm_2(x))
        scale = 2.0 if bool((hidden.sum() > -1e9).item()) else 3.0
        return x + self.down(F.gelu(hidden * scale))


BLOCKS: Dict[str, Any] = {
    "block": lambda: Block(dropout=0.0),
    "dropout": Block,
    "dropout within": lambda: Block(within=0.3),
    "rotary": Rotary,
    "frozen": Frozen,
    "looking": Looking,
    "matmul": GptBlock,
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small results are worth a copy."""
    monkeypatch.setattr(recipes, "LEAST", 1024)
    monkeypatch.setattr(keepsakes.Keepsakes.__init__, "__defaults__", (1024,))
    monkeypatch.setattr("rekindle.torch.times.SMALL", 1024)


def studied(block: nn.Module, x: Any, extras: Any = ()) -> Any:
    """An engine for one block, and what it knows of it."""
    cpu = torch.device("cpu")
    engine = measuring.MeasuringEngine(
        [Stage(1, "block", block)], Call("value", None, extras, {}), Generators([cpu]), cpu, frozenset([1]), ["attention"]
    )
    boundary = Boundary([x], TENSOR, [True])
    engine.recipes[1] = engine.study(1, boundary)
    return engine, boundary


@pytest.mark.parametrize("name", list(BLOCKS))
def test_gradients_are_plain_pytorchs_at_every_level(name: str, small: None) -> None:
    torch.manual_seed(3)
    block, x = BLOCKS[name](), torch.randn(3, 10, 32)
    engine, boundary = studied(block, x)
    levels = engine.recipes[1]
    assert levels, "something is worth keeping"
    leaf = x.clone().requires_grad_()
    own = [parameter for parameter in block.parameters() if parameter.requires_grad]
    for level in (None, *levels):
        torch.manual_seed(7)
        output = block(leaf)
        expected = torch.autograd.grad(output, [leaf, *own], torch.ones_like(output), allow_unused=True)
        torch.manual_seed(7)
        ghost, made = engine.ghost(1, boundary, level)
        assert torch.equal(made.tensors[0], output)
        assert (ghost.recipe is not None) == (level is not None)
        torch.manual_seed(7)
        engine.fill(1, ghost, boundary)
        (of_input,) = engine.backward(1, ghost, [torch.ones_like(output)])
        assert torch.equal(of_input, expected[0])
        for found, wanted in zip(engine.own_gradients[0], expected[1:]):
            assert (found is None and wanted is None) or torch.equal(found, wanted)


def steps_of(recipe: Recipe) -> List[str]:
    return [f"{step} {name_of(function)}" for function, step in recipe.steps if name_of(function) != "__get__"]


def test_what_is_left_out(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """With attention's arguments kept nobody rotates them again, nor multiplies for them."""
    engine, boundary = studied(Rotary(), torch.randn(3, 10, 32))
    calls = _study(Rotary(), torch.randn(3, 10, 32)).calls
    names = [name_of(call.function) for call in calls]
    rotated = [number for number, call in enumerate(calls) if name_of(call.function) in ("add", "__add__")][:2]
    assert all(calls[number].may_be_kept for number in rotated)
    runs = {names[number] for number in needed(calls, frozenset(rotated))}
    assert "cat" not in runs and "neg" not in runs and "__neg__" not in runs
    assert "cat" in {names[number] for number in needed(calls, frozenset())}
    # The last product is never made again, and the one before the feed-forward part not where its sum is kept.
    linears = [number for number, name in enumerate(names) if name == "linear"]
    assert linears[-1] not in needed(calls, frozenset())
    after_attention = [number for number, call in enumerate(calls) if name_of(call.function) in ("add", "__add__")][2]
    assert linears[1] in needed(calls, frozenset()) and linears[1] not in needed(calls, frozenset({after_attention}))
    for recipe in engine.recipes[1].values():
        assert {line.split()[0] for line in steps_of(recipe)} >= {"keep", "skip"}


def _study(block: nn.Module, x: Any, generators: bool = True) -> recipes.Study:
    leaf = x.clone().requires_grad_()
    study = recipes.Study([leaf, *block.parameters(), *block.buffers()], Generators([x.device]) if generators else None)
    study.of(block)(leaf)
    return study


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Stashing(torch.autograd.Function):
    """Keeps what it needs where nobody sees it, and gives memory that a call made."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.x = x.detach()
        return x.detach() * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Does(nn.Module):
    def __init__(self, what: Any):
        super().__init__()
        self.first, self.second, self.what = nn.Linear(32, 32), nn.Linear(32, 32), what

    def forward(self, x: Any) -> Any:
        return self.second(self.what(torch.tanh(self.first(x))))


def _filled(x: Any) -> Any:
    memory = torch.zeros_like(x)
    memory.copy_(x)
    return memory


@pytest.mark.parametrize(
    "what",
    [
        lambda x: Squared.apply(x),
        lambda x: Stashing.apply(x),
        lambda x: (x * 2).add_(1),
        lambda x: torch.empty_like(x).copy_(x),
        _filled,
        lambda x: torch.mul(x.detach(), 2, out=torch.empty(0)) + x,
    ],
    ids=["function", "stashing", "in place", "empty", "zeros", "out"],
)
def test_what_is_not_understood_is_not_studied(what: Any, small: None) -> None:
    block, x = Does(what), torch.randn(9, 32)
    assert _study(block, x).why is not None
    engine, _ = studied(block, x)
    assert engine.recipes[1] == {}
    assert _study(Does(torch.sin), x).why is None


def test_batch_norm_and_autocast_are_not_studied(small: None) -> None:
    norm = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())
    assert studied(norm, torch.randn(9, 32))[0].recipes[1] == {}
    with torch.autocast("cpu", torch.bfloat16):
        assert studied(Rotary(), torch.randn(3, 10, 32))[0].recipes[1] == {}


def test_calls_that_draw_or_look_are_made() -> None:
    x = torch.randn(3, 10, 32)
    calls = _study(Block(), x).calls
    drawn = [call for call in calls if name_of(call.function) == "dropout"]
    assert len(drawn) == 2 and all(call.must and not call.may_be_kept for call in drawn)
    everything = frozenset(number for number, call in enumerate(calls) if call.may_be_kept)
    assert {number for number, call in enumerate(calls) if call.must} <= needed(calls, everything)
    assert recipes.is_plain(x.shape) and recipes.is_plain(x.device) and recipes.is_plain(x.dtype)
    assert not recipes.is_plain((x.clone().requires_grad_() * 2).grad_fn)
    looked = _study(Looking(), x).calls
    (item,) = [number for number, call in enumerate(looked) if name_of(call.function) == "item"]
    runs = needed(looked, frozenset())
    assert item in runs and set(filter(None, looked[item].sources)) <= runs


def _call(sources: List[Optional[int]], took: float, size: int, saves: Any = (), own: bool = False) -> Seen:
    seen = Seen(f"call {took}", sources, 0)
    seen.took, seen.size, seen.of_arguments, seen.own, seen.may_be_kept = took, size, set(saves), own, True
    return seen


def test_the_best_by_time_per_byte_come_first() -> None:
    """0 and 1 in a row, 2 reads 1 and saves it; 3 saves what it makes; 4 reads both."""
    mib = 1 << 20
    calls = [
        _call([None], 100, 8 * mib),
        _call([0], 500, mib),
        _call([1], 10, mib, saves=[0]),
        _call([None], 300, mib, own=True),
        _call([2, 3], 50, mib, saves=[0, 1]),
    ]
    assert needed(calls, frozenset()) == {0, 1, 2, 3}
    assert needed(calls, frozenset({1})) == {2, 3}
    assert needed(calls, frozenset({1, 2, 3})) == set()
    found = levels_of(calls, 1)
    kept = [[number for number, (_, step) in enumerate(each.steps) if step == KEEP] for each in found]
    assert kept == [[1], [1, 3], [1, 2, 3]]
    assert [step for _, step in found[1].steps] == [SKIP, KEEP, RUN, KEEP, SKIP]
    # What comes behind the last value that is saved is no matter.
    assert levels_of(calls, 0) == []


@pytest.mark.parametrize("limit", [1 << 30, 50000], ids=["enough", "too small"])
@pytest.mark.parametrize("make", [Rotary, Block], ids=["rotary", "dropout"])
def test_keepsakes_by_recipes_come_back(said: List[str], small: None, make: Any, limit: int) -> None:  # noqa: F811
    plain, ours = twins(lambda: Row(make, blocks=5))
    x = torch.randn(3, 10, 32, requires_grad=True)
    engine, _ = studied(copy.deepcopy(ours.blocks[0]), x.detach())
    levels = list(engine.recipes[1])
    region = rekindle.torch.checkpointed(ours.blocks, plan=per_block(5))
    places = in_host_memory(limit)
    region.planner.places = places
    ours.blocks = region
    for turn in range(3):
        expected = step(plain, lambda: plain(x), (x,))
        assert step(ours, lambda: ours(x), (x,)).same_as(expected) == []
        if turn == 0:
            chosen = {number: levels[number % len(levels)] for number in range(1, 5)}
            region.current.arrangement = some_arrangement(chosen)
            # Blocks of one code have the same recipes.
            region.current.known["recipes"] = {number: engine.recipes[1] for number in range(1, 6)}
    assert any("back waits for" in line for line in said)
    memory = places.pinned
    lent = sum(len(buffers) * size for size, buffers in memory._free.items())
    assert memory.allocated == lent <= limit and not memory.tickets._boundaries


def test_a_stage_that_does_something_else_has_no_recipe(small: None) -> None:
    """In the first run that is no matter: all of it is run again. In the second it is an error."""

    class Turning(Rotary):
        other = False

        def forward(self, x: Any) -> Any:
            return super().forward(torch.sin(x) if self.other else x)

    block, x = Turning(), torch.randn(3, 10, 32)
    engine, boundary = studied(block, x)
    level = list(engine.recipes[1])[-1]
    block.other = True
    ghost, made = engine.ghost(1, boundary, level)
    assert ghost.recipe is None and ghost.calls == [] and ghost.pieces.tensors == []
    engine.fill(1, ghost, boundary)
    (of_input,) = engine.backward(1, ghost, [torch.ones_like(x)])
    leaf = x.clone().requires_grad_()
    assert torch.equal(of_input, torch.autograd.grad(block(leaf), leaf, torch.ones_like(x))[0])
    block.other = False
    ghost, _ = engine.ghost(1, boundary, level)
    block.other = True
    with pytest.raises(torch_errors.StageChanged):
        engine.fill(1, ghost, boundary)


def test_a_plan_keeps_what_is_worth_most(said: List[str], small: None) -> None:  # noqa: F811
    plain, ours = twins(lambda: Row(Rotary, blocks=6))
    x = torch.randn(4, 64, 32, requires_grad=True)
    region = rekindle.torch.checkpointed(ours.blocks, budget="1GiB", runs=1)
    region(x).sum().backward()
    least = rekindle.smallest_budget(region.profile)
    ours.zero_grad(set_to_none=True)
    region = rekindle.torch.checkpointed(ours.blocks, budget=least * 2, runs=3, options=["attention", "products"])
    region.planner.places = in_host_memory()
    ours.blocks = region
    for _ in range(2):
        expected = step(plain, lambda: plain(x), (x,))
        assert step(ours, lambda: ours(x), (x,)).same_as(expected) == []
    known = region.current.known
    assert known["recipes"].keys() == set(range(1, 7))
    sizes = [known["kept"][0][level].size for level in known["recipes"][1]]
    assert sizes == sorted(sizes) and sizes[0] > 0
    assert region.plan.predicted.peak_bytes <= least * 2


# What leaves while the model goes on behind the region.


def test_things_may_leave_until_the_model_returns() -> None:
    profile = a_profile(12)
    known = [{"1 results": Kept(45_000, 100, 50), "2 results": Kept(135_000, 100, 20)}] * 12
    without = list(arrangements(profile, known, 10**12, 10**12, 1 << 40))
    longer = list(arrangements(profile, known, 10**12, 10**12, 1 << 40, beyond=600, late=1 << 40))
    little = list(arrangements(profile, known, 10**12, 10**12, 1 << 40, beyond=600, late=270_000))

    def many(found: List[Arrangement]) -> int:
        return max(list(each.levels.values()).count("2 results") for each in found)

    assert many(without) < many(little) < many(longer)
    assert all(each.late_bytes == 0 for each in without)
    for each, most in [(each, 270_000) for each in little] + [(each, 1 << 40) for each in longer]:
        late = [number for number in each.levels if each.released(number) == 14]
        assert each.late_bytes == sum(known[0][each.levels[number]].size for number in late) <= most
    assert any(each.late_bytes for each in longer)


def test_who_lets_go_when(said: List[str]) -> None:  # noqa: F811
    memory = host()
    arrangement = some_arrangement({1: "1 results", 2: "1 results"})
    arrangement.releases = {1: 3, 2: 4}
    ghost = type("Ghost", (), {"pieces": type("Pieces", (), {"tensors": []})()})
    kept = keepsakes.Keepsakes(arrangement, memory.store(), memory.tickets, small=1)
    for number in (1, 2):
        ghost.pieces.tensors = [torch.randn(5)]
        kept.send(number, ghost)
    kept.turn(2)
    assert kept._leaving == {2}, "the other leaves until the model returns"
    kept.settle()
    assert not kept._leaving
    # Where nobody tells, the first stage that goes back does.
    again = keepsakes.Keepsakes(arrangement, memory.store(), memory.tickets, small=1)
    ghost.pieces.tensors = [torch.randn(5)]
    again.send(2, ghost)
    again.turn(2)
    again.go_back(2)
    assert not again._leaving


def test_the_model_tells_when_it_returns(said: List[str], small: None) -> None:  # noqa: F811
    plain, ours = twins(lambda: Row(Rotary, blocks=3))
    x = torch.randn(3, 10, 32, requires_grad=True)
    engine, _ = studied(copy.deepcopy(ours.blocks[0]), x.detach())
    region = rekindle.torch.checkpointed(ours.blocks, plan=per_block(3), name="blocks")
    region.planner.places = in_host_memory()
    installed = rekindle.torch.Installed(ours, region, "blocks")
    installed.install()
    installed.tell_when_it_returns()
    ours(x).backward()
    ours.zero_grad(set_to_none=True)
    arrangement = some_arrangement({2: "1 results"})
    arrangement.releases, arrangement.late_bytes = {2: 5}, 1
    region.current.arrangement = arrangement
    region.current.known["recipes"] = {number: engine.recipes[1] for number in range(1, 4)}
    said.clear()
    expected = step(plain, lambda: plain(x), (x,))
    loss = ours(x)
    assert "compute waits for out 1" in said and len(region.late) == 0
    ours.zero_grad(set_to_none=True)
    del loss
    assert step(ours, lambda: ours(x), (x,)).same_as(expected) == []
    installed.remove()
    assert not ours._forward_hooks


def test_what_a_step_takes_until_the_model_returns() -> None:
    watch = Watch(torch.device("cpu"))
    points = ("step begins", "forward begins", "forward ends", "model returns", "loss")
    points += ("backward begins", "backward ends", "step ends")
    watch.live = dict(zip(points, (100, 150, 170, 180, 190, 230, 400, 380)))
    watch.peak = dict(zip(points, (0, 160, 500, 270, 195, 340, 600, 420)))
    watch.at = dict(zip(points, (0, 1, 11, 21, 24, 60, 90, 95)))
    around = surroundings(watch, 200, 0, accumulates=False)
    assert around.beyond_ns() == 10
    assert around.after["returns_peak_bytes"] == 100
    assert around.after["forward_extra_bytes"] == 80, "the worst moment is before it returns"
    # 20 of a tape, 90 beyond it when it goes back, 60 of gradients.
    assert around.after["backward_extra_bytes"] == 90 and around.late_bytes() == 70
    profile = {"input_bytes": 5, "stages": []}
    assert around.around(profile)["stages"][-1]["forward_extra_bytes"] == 80
    assert around.around(profile, 30)["stages"][-1]["forward_extra_bytes"] == 110
    # Without a word from the model nothing leaves late.
    for known in (watch.live, watch.peak, watch.at):
        del known["model returns"]
    assert surroundings(watch, 200, 0, accumulates=False).beyond_ns() == 0


def test_what_is_on_its_way_beside_other_runs_is_looked_for() -> None:
    known = [{"1 results": Kept(10, 1, 1)}] * 3
    arrangement = some_arrangement({1: "1 results"})
    arrangement.releases = {1: 3}
    usual = ["forward 1", "forward 2", "tape 3", "backward 3", "tape 2", "backward 2", "tape 1", "backward 1"]
    assert fits(usual, [100] * 8, known, arrangement, 0, 100)
    # 1 leaves while 2 runs, and begins to come when 2 goes back.
    taped = ["forward 1", "tape 2", "tape 3", "backward 3", "backward 2", "tape 1", "backward 1"]
    assert not fits(taped, [100] * 7, known, arrangement, 0, 109)
    assert fits(taped, [100] * 7, known, arrangement, 0, 110)
    again = ["forward 1", "forward 2", "tape 3", "backward 3", "forward 2", "tape 2", "backward 2", "tape 1", "backward 1"]
    assert not fits(again, [100] * 9, known, arrangement, 0, 109)
    assert fits([action.replace("2", "9") for action in taped], [100] * 7, known, arrangement, 0, 100)
    shifted = ["tape 1", "forward 2", "tape 3", "tape 4", "tape 5", "backward 5"]
    assert not fits(shifted, [100] * 6, known, arrangement, 1, 109)


def test_what_leaves_and_what_comes_are_counted_apart() -> None:
    profile, size = a_profile(4), 45_000
    known = [{"1 results": Kept(size, 100, 50)}] * 4
    (found,) = list(arrangements(profile, known, 10**12, 10**12, 1 << 40))
    stages = arranged(profile, known, found, {}, everywhere=False)["stages"]
    assert [stage["forward_extra_bytes"] for stage in stages] == [size, 2 * size, 2 * size, size]
    assert [stage["taped_extra_bytes"] for stage in stages] == [0, 0, 0, 0]
    everywhere = arranged(profile, known, found, {})["stages"]
    assert [stage["taped_extra_bytes"] for stage in everywhere] == [0, size, size, size]
    assert Surroundings(0, {}, {"tape_bytes": 1, "backward_extra_bytes": 2, "parameter_gradient_bytes": 3}).late_bytes() == 6
