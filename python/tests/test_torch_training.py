"""Training with an optimizer, on one process and on two."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List

import pytest

torch = pytest.importorskip("torch")

import rekindle.torch
from torch import nn
from torch_models import ConvNet, Gpt, Mlp, twins

torch.set_num_threads(1)


def train(model: nn.Module, steps: int) -> List[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for number in range(steps):
        torch.manual_seed(number)
        ids = torch.randint(0, 61, (4, 12))
        loss = model(ids, ids.roll(-1, 1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("settings", [{"strategy": "every-1"}, {"strategy": "sqrt"}, {"budget": "1MiB", "runs": 1}])
def test_ten_steps_give_the_weights_of_plain_training(settings: Dict[str, Any]) -> None:
    plain, ours = twins(Gpt)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, **settings)
    assert train(plain, 10) == train(ours, 10)
    for (name, expected), (_, found) in zip(plain.named_parameters(), ours.named_parameters()):
        assert torch.equal(expected, found), name


def test_evaluation_in_between_changes_nothing() -> None:
    plain, ours = twins(ConvNet)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy="every-2")
    found = []
    for model in (plain, ours):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for number in range(3):
            x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(number))
            model.train()
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                found.append(model(x))
    for expected, ours_found in zip(found[:3], found[3:]):
        assert torch.equal(expected, ours_found)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def rank(number: int, port: int, path: str) -> None:
    """One of two processes: trains a model with and without a region, and writes down what it saw."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=number, world_size=2)
    plain, ours = twins(Mlp)
    ours.blocks = rekindle.torch.checkpointed(ours.blocks, strategy="every-2")
    results = []
    for model in (plain, ours):
        heard: List[str] = []
        parallel = nn.parallel.DistributedDataParallel(model)
        kept = []
        for name, parameter in model.named_parameters():
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, name=name: heard.append(name))
            kept.append(node)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(3):
            torch.manual_seed(10 * step + number)
            parallel(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
            gradients = [parameter.grad.clone() for parameter in model.parameters()]
            optimizer.zero_grad()
        results.append(([p.detach().clone() for p in model.parameters()], gradients, sorted(heard)))
    torch.save(results, f"{path}/{number}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_get_each_gradient_once(tmp_path: Any) -> None:
    if not torch.distributed.is_available():
        pytest.skip("this PyTorch has no distributed package")
    torch.multiprocessing.spawn(rank, (free_port(), str(tmp_path)), nprocs=2)
    ranks = [torch.load(tmp_path / f"{number}.pt") for number in range(2)]
    for plain, ours in ranks:
        for expected, found in zip(plain[0] + plain[1], ours[0] + ours[1]):
            assert torch.equal(expected, found)
        assert ours[2] == plain[2] and len(ours[2]) == 3 * len(ours[0])
    for first, second in zip(ranks[0][1][0], ranks[1][1][0]):
        assert torch.equal(first, second), "the processes have gone apart"
