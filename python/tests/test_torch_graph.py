"""A region in the user's graph: who gets a gradient, how often, and in what order it is summed."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any, List, Tuple

import pytest

torch = pytest.importorskip("torch")

import rekindle.torch
from torch import nn
from torch_models import Mlp, step, twins

torch.set_num_threads(1)

RULES = ["every-1", "sqrt", "full", "store-all"]


class Pair(nn.Module):
    """A tuple in, a tuple out, of which one tensor passes through and one is of integers."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, value: Tuple[Any, Any, Any]) -> Tuple[Any, Any, Any]:
        x, y, ids = value
        x = torch.tanh(self.left(x) + y)
        return x, torch.sigmoid(self.right(y)) * x, ids + 1


class Spread(nn.Module):
    def __init__(self, width: int = 16):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Any, memory: Any, scale: float = 1.0) -> Tuple[Any, Any]:
        return torch.tanh(self.linear(x)) * scale + memory, memory


class Named(nn.Module):
    """A dictionary between blocks."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, state: Any) -> Any:
        x = torch.tanh(self.linear(state["x"]))
        return {"x": x, "history": [*state["history"][-1:], x * 2], "name": state["name"]}


@pytest.mark.parametrize("strategy", RULES)
def test_tuples(strategy: str) -> None:
    plain, ours = twins(lambda: nn.Sequential(*[Pair() for _ in range(5)]))
    region = rekindle.torch.checkpointed(ours, strategy=strategy)
    x, y = torch.randn(4, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True)
    ids = torch.arange(4)

    def run(model: Any) -> Any:
        a, b, c = model((x, y, ids))
        assert torch.equal(c, ids + 5) and not c.requires_grad
        return (a * b).square().mean() + b.mean()

    expected = step(plain, lambda: run(plain), (x, y))
    assert step(ours, lambda: run(region), (x, y)).same_as(expected) == []


@pytest.mark.parametrize("strategy", RULES)
def test_arguments_that_are_spread(strategy: str) -> None:
    plain, ours = twins(lambda: nn.ModuleList(Spread() for _ in range(5)))
    region = rekindle.torch.checkpointed(ours, strategy=strategy, wiring="spread")
    x, memory = torch.randn(4, 16, requires_grad=True), torch.randn(4, 16, requires_grad=True)

    def run_plain() -> Any:
        a, m = x, memory
        for block in plain:
            a, m = block(a, m, scale=0.5)
        return a.square().mean() + m.mean()

    def run_ours() -> Any:
        a, m = region(x, memory, scale=0.5)
        return a.square().mean() + m.mean()

    expected = step(plain, run_plain, (x, memory))
    assert step(ours, run_ours, (x, memory)).same_as(expected) == []


@pytest.mark.parametrize("strategy", RULES)
def test_dictionaries_and_lists(strategy: str) -> None:
    plain, ours = twins(lambda: nn.Sequential(*[Named() for _ in range(4)]))
    region = rekindle.torch.checkpointed(ours, strategy=strategy)
    x = torch.randn(4, 16, requires_grad=True)

    def run(model: Any) -> Any:
        state = model({"x": x, "history": [x], "name": "n"})
        assert state["name"] == "n" and len(state["history"]) == 2
        return state["x"].square().mean() + sum(h.mean() for h in state["history"])

    expected = step(plain, lambda: run(plain), (x,))
    assert step(ours, lambda: run(region), (x,)).same_as(expected) == []


@pytest.mark.parametrize("strategy", RULES)
@pytest.mark.parametrize("wanted", [True, False])
def test_keyword_arguments_with_and_without_gradients(strategy: str, wanted: bool) -> None:
    class Twice(nn.Module):
        """Reads its keyword argument more than once, so that the order in which gradients are summed shows."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: Any, bias: Any = None, number: float = 1.0) -> Any:
            return torch.tanh(self.linear(x + bias) * bias) * number + bias.sin()

    plain, ours = twins(lambda: nn.ModuleList(Twice() for _ in range(5)))
    region = rekindle.torch.checkpointed(ours, strategy=strategy)
    x, bias = torch.randn(4, 16), torch.randn(4, 16, requires_grad=wanted)

    def run_plain() -> Any:
        y = x
        for block in plain:
            y = block(y, bias=bias, number=0.7)
        return y.square().mean()

    expected = step(plain, run_plain, (bias,))
    found = step(ours, lambda: region(x, bias=bias, number=0.7).square().mean(), (bias,))
    assert found.same_as(expected) == []
    assert (bias.grad is not None) == wanted


@pytest.mark.parametrize("strategy", RULES)
def test_frozen_parameters(strategy: str) -> None:
    def make() -> nn.Module:
        model = Mlp(6)
        for number, block in enumerate(model.blocks):
            block[0].weight.requires_grad_(number not in (0, 1, 3))
            block[0].bias.requires_grad_(number not in (0, 1, 3))
            block[3].requires_grad_(number not in (0, 1))
        return model

    plain, ours = twins(make)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy=strategy)
    x = torch.randn(9, 32)
    expected = step(plain, lambda: plain(x).square().mean())
    found = step(ours, lambda: ours(x).square().mean())
    assert found.same_as(expected) == []
    assert found.gradients["blocks.0.0.weight"] is None and found.gradients["blocks.2.0.weight"] is not None


@pytest.mark.parametrize("strategy", RULES)
def test_parameters_that_blocks_share(strategy: str) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(5)])
        model[3][0].weight = model[1][0].weight
        model[4][2].weight = model[1][0].weight
        # Within one block as well.
        model[2][2].weight = model[2][0].weight
        return model

    plain, ours = twins(make)
    region = rekindle.torch.checkpointed(ours, strategy=strategy)
    x = torch.randn(9, 16, requires_grad=True)
    expected = step(plain, lambda: plain(x).square().mean(), (x,))
    assert step(ours, lambda: region(x).square().mean(), (x,)).same_as(expected) == []


@pytest.mark.parametrize("strategy", RULES)
def test_nested_regions(strategy: str) -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner: Any = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.Tanh()) for _ in range(3)])
            self.norm = nn.BatchNorm1d(16)

        def forward(self, x: Any) -> Any:
            return self.norm(self.inner(x)) + x

    plain, ours = twins(lambda: nn.Sequential(*[Outer() for _ in range(4)]))
    for outer in ours:
        outer.inner = rekindle.torch.checkpointed(outer.inner, strategy="every-1")
    region = rekindle.torch.checkpointed(ours, strategy=strategy)
    x = torch.randn(9, 16, requires_grad=True)
    expected = step(plain, lambda: plain(x).square().mean(), (x,))
    assert step(ours, lambda: region(x).square().mean(), (x,)).same_as(expected) == []


@pytest.mark.parametrize("strategy", RULES)
def test_accumulated_gradients(strategy: str) -> None:
    plain, ours = twins(Mlp)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy=strategy)
    for model in (plain, ours):
        for number in range(3):
            x = torch.randn(4, 32, generator=torch.Generator().manual_seed(number))
            seen = step(model, lambda: model(x).square().mean(), seed=number, clear=number == 0)
        if model is plain:
            expected = seen
    assert seen.same_as(expected) == []


@pytest.mark.parametrize("strategy", RULES)
def test_autocast(strategy: str) -> None:
    plain, ours = twins(Mlp)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy=strategy)
    x = torch.randn(9, 32)

    def run(model: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(x)
        assert y.dtype == torch.bfloat16
        return y.float().square().mean()

    expected = step(plain, lambda: run(plain))
    assert step(ours, lambda: run(ours)).same_as(expected) == []


def test_autocast_that_is_on_in_the_backward_only() -> None:
    plain, ours = twins(Mlp)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy="full")
    x = torch.randn(9, 32)
    for model in (plain, ours):
        torch.manual_seed(1)
        loss = model(x).square().mean()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss.backward()
    for (name, a), (_, b) in zip(plain.named_parameters(), ours.named_parameters()):
        assert torch.equal(a.grad, b.grad), name


def test_bfloat16() -> None:
    plain, ours = twins(lambda: Mlp().to(torch.bfloat16))
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy="every-2")
    x = torch.randn(9, 32, dtype=torch.bfloat16)
    expected = step(plain, lambda: plain(x).float().square().mean())
    assert step(ours, lambda: ours(x).float().square().mean()).same_as(expected) == []


def test_each_parameter_hears_of_its_gradient_once_and_as_soon_as_it_is_there() -> None:
    model = Mlp(4)
    model.blocks = rekindle.torch.checkpointed(model.blocks, strategy="every-1")
    heard: List[str] = []
    kept = []
    for name, parameter in model.named_parameters():
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(lambda *_, name=name: heard.append(name))
        kept.append(node)
    ran: List[int] = []
    for number, stage in enumerate(model.blocks.stages):
        forward = stage.block.forward
        stage.block.forward = lambda x, forward=forward, number=number: (ran.append((number, len(heard))), forward(x))[1]
    model(torch.randn(3, 32)).sum().backward()
    assert sorted(heard) == sorted(name for name, _ in model.named_parameters())
    # Block 1 is run again when the gradients of blocks 2 and 3 have been heard of, not at the end of it all.
    again = {number: heard_before for number, heard_before in ran if heard_before > 0}
    assert again[1] >= 8, ran
    order = [name.split(".")[1] for name in heard if name.startswith("blocks")]
    assert order == sorted(order, reverse=True), order


def test_gradients_asked_for_by_name() -> None:
    plain, ours = twins(Mlp)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy="sqrt")
    x = torch.randn(9, 32, requires_grad=True)
    found = []
    for model in (plain, ours):
        torch.manual_seed(2)
        loss = model(x).square().mean()
        parameters = list(model.parameters())
        found.append(torch.autograd.grad(loss, [x, *parameters[-6:], parameters[3]]))
        assert all(parameter.grad is None for parameter in parameters)
    for expected, gradient in zip(*found):
        assert torch.equal(expected, gradient)


def test_without_gradients_blocks_run_as_they_are() -> None:
    plain, ours = twins(Mlp)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, budget="1GiB")
    x = torch.randn(9, 32)
    plain.eval(), ours.eval()
    with torch.no_grad():
        assert torch.equal(plain(x), ours(x))
    assert not ours.blocks.planned, "nothing had to be planned"
    expected = step(plain, lambda: plain(x).square().mean())
    assert step(ours, lambda: ours(x).square().mean()).same_as(expected) == []


class Counted(nn.Module):
    """Counts the graphs it is part of: those that were made, and those that are gone."""

    made = gone = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    class Mark(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            ctx.mark = torch.zeros(1)
            Counted.made += 1
            weakref.finalize(ctx.mark, Counted.count)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            assert ctx.saved_tensors[0].shape == gradient.shape
            return gradient

    @staticmethod
    def count() -> None:
        Counted.gone += 1

    def forward(self, x: Any) -> Any:
        return torch.tanh(Counted.Mark.apply(self.linear(x)))


@pytest.mark.parametrize("settings", [{"strategy": rule} for rule in RULES] + [{"budget": "1MiB", "runs": 2}])
def test_nothing_of_a_step_is_left(settings: Any) -> None:
    """After steps, steps without a backward, and measurements: without the collector, which cannot see into a graph."""
    blocks = nn.Sequential(*[Counted() for _ in range(4)])
    x = torch.randn(3, 8, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        for number in range(5):
            Counted.made = Counted.gone = 0
            region = rekindle.torch.checkpointed(blocks, **settings)
            for goes_back in (True, False):
                loss = region(x).sum()
                if goes_back:
                    loss.backward()
                del loss
            assert Counted.gone == Counted.made > 0
    finally:
        gc.enable()


def test_nothing_of_auto_is_left() -> None:
    model = nn.Sequential(*[Counted() for _ in range(4)])
    gc.collect()
    gc.disable()
    try:
        Counted.made = Counted.gone = 0
        installed = rekindle.torch.auto(model, torch.randn(3, 8), "1MiB", runs=1, loss=lambda y: y.sum())
        installed.remove()
        assert Counted.gone == Counted.made > 0
    finally:
        gc.enable()


def test_values_go_as_the_graph_has_read_them() -> None:
    """A stage that was filled in holds on to no value that its graph has read."""
    from rekindle.torch.ghosts import Ghost

    x = torch.randn(4, 4)
    ghost = Ghost()
    weight = torch.randn(4, 4, requires_grad=True)

    def run(value: Any) -> Any:
        for _ in range(3):
            value = torch.tanh(value @ weight)
        return value

    (inner,) = ghost.begin([x], [True])
    with ghost.noting():
        output = run(inner)
    ghost.finish([output])
    holders = list(ghost.holders)
    assert holders and all(holder.value is None for holder in holders)
    with ghost.filling():
        run(x.detach().requires_grad_())
    values = [weakref.ref(holder.value) for holder in holders]
    del holders, output, inner
    ghost.box.incoming = [torch.ones(4, 4)]
    ghost.end.backward(torch.empty_like(ghost.end))
    assert sum(value() is not None for value in values) == 0
    assert ghost.box.outgoing[0].shape == (4, 4)


def test_only_a_part_of_the_output_is_used() -> None:
    plain, ours = twins(lambda: nn.Sequential(*[Pair() for _ in range(3)]))
    region = rekindle.torch.checkpointed(ours, strategy="every-1")
    x, y = torch.randn(4, 16, requires_grad=True), torch.randn(4, 16)
    expected = step(plain, lambda: plain((x, y, torch.arange(4)))[0].mean(), (x,))
    assert step(ours, lambda: region((x, y, torch.arange(4)))[0].mean(), (x,)).same_as(expected) == []


def test_blocks_of_a_deep_copy() -> None:
    model = Mlp()
    model.blocks = rekindle.torch.checkpointed(model.blocks, strategy="every-1")
    twin = copy.deepcopy(model)
    x = torch.randn(3, 32)
    expected = step(model, lambda: model(x).sum())
    assert step(twin, lambda: twin(x).sum()).same_as(expected) == []
    assert twin.blocks.stages[0].block is twin.blocks._modules["0"]


@pytest.mark.parametrize("strategy", RULES)
def test_hooks_of_the_users_run_once(strategy: str) -> None:
    """On parameters, on the input and on the output: each changes the gradient, so that twice would show."""
    plain, ours = twins(Mlp)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy=strategy)
    x = torch.randn(9, 32, requires_grad=True)
    heard = {id(plain): [], id(ours): []}
    x.register_hook(lambda gradient: gradient * 3)
    for model in (plain, ours):
        for name, parameter in model.named_parameters():
            if "weight" in name:
                parameter.register_hook(lambda g, name=name, said=heard[id(model)]: (said.append(name), g * 2)[1])

    def run(model: Any) -> Any:
        y = model.blocks(x)
        y.register_hook(lambda gradient: gradient + 1)
        return model.head(y).square().mean()

    expected = step(plain, lambda: run(plain), (x,))
    assert step(ours, lambda: run(ours), (x,)).same_as(expected) == []
    assert sorted(heard[id(ours)]) == sorted(heard[id(plain)]) and heard[id(ours)]
