"""Other ways to keep a block's tape."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rekindle
import rekindle.torch
from torch import nn
from torch_models import ConvNet, Gpt, Mlp, step, twins

torch.set_num_threads(1)


def with_option(blocks: int, option: str) -> rekindle.Plan:
    """Every tape under an option."""
    stages = [
        rekindle.StageProfile(str(i), 1, 1, 1, 1, options=[rekindle.TapeOption(option, 1, 1, 1)]) for i in range(blocks)
    ]
    profile = rekindle.Profile("m", "cpu", 1, stages)
    actions = [f"tape {number} {option}" for number in range(1, blocks + 1)]
    actions += [f"backward {number}" for number in range(blocks, 0, -1)]
    return rekindle.Plan.of_actions(profile, actions)


@pytest.mark.parametrize("option", ["recompute", "selective"])
def test_blocks_under_pytorchs_own_checkpoint(option: str) -> None:
    if option == "selective" and not hasattr(torch.utils.checkpoint, "create_selective_checkpoint_contexts"):
        pytest.skip("this PyTorch has no selective contexts")
    ids = torch.randint(0, 61, (4, 12))
    cases: Any = [
        (Gpt, 5, lambda model: model(ids, ids)),
        (ConvNet, 5, lambda model: model(torch.ones(2, 3, 8, 8)).square().mean()),
        (Mlp, 6, lambda model: model(torch.ones(9, 32)).square().mean()),
    ]
    for make, count, run in cases:
        plain, ours = twins(make)
        ours.blocks = rekindle.torch.checkpointed(ours.blocks, plan=with_option(count, option), options=option)
        for _ in range(2):
            expected = step(plain, lambda: run(plain))
            # Running statistics among them: PyTorch's checkpoint by itself updates them twice.
            assert step(ours, lambda: run(ours)).same_as(expected) == []


def test_a_plan_mixes_options() -> None:
    plain, ours = twins(lambda: Mlp(8))
    x = torch.randn(512, 32)
    region = rekindle.torch.checkpointed(ours.blocks, budget="1GiB", runs=1, options="recompute")
    region(x).sum().backward()
    stage = region.profile.stages[0]
    assert [option.name for option in stage.options] == ["recompute"]
    assert stage.options[0].tape_bytes == stage.output_bytes < stage.tape_bytes
    # As if running again inside the backward were cheaper than by the plan: as it is from PyTorch 2.1 on.
    import json

    values = json.loads(region.profile.to_json())
    for stage_values in values["stages"]:
        option = stage_values["options"][0]
        option["forward_ns"] = stage_values["forward_ns"]
        option["backward_ns"] = stage_values["backward_ns"] + stage_values["forward_ns"] // 2
        stage_values.pop("unread_ns", None)
    profile = rekindle.Profile.from_json(json.dumps(values))
    least, most = rekindle.smallest_budget(profile), region.plan.predicted.peak_bytes
    ours.zero_grad(set_to_none=True)
    ours.blocks = rekindle.torch.checkpointed(
        ours.blocks, budget=(least + most) // 2, profile=profile, options="recompute"
    )
    expected = step(plain, lambda: plain(x).square().mean())
    assert step(ours, lambda: ours(x).square().mean()).same_as(expected) == []
    ways = set(ours.blocks.report.ways())
    assert "tape kept (recompute)" in ways and "tape kept" in ways, ways


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this PyTorch does not compile")
def test_compiled_options_agree_with_each_other() -> None:
    plain, ours = twins(lambda: Mlp(4, dropout=0.0))
    x = torch.randn(64, 32)
    region = rekindle.torch.checkpointed(ours.blocks, budget="1GiB", runs=1, options=[0.5, 0.0])
    region(x).sum().backward()
    assert [option.name for option in region.profile.stages[0].options] == ["compiled-0.5", "compiled-0"]
    # Compiled code rounds in its own way; it is close to what is not compiled.
    ours.blocks = region
    expected = step(plain, lambda: plain(x).square().mean())
    found = step(ours, lambda: ours(x).square().mean())
    for name, gradient in found.gradients.items():
        assert torch.allclose(gradient, expected.gradients[name], rtol=1e-4, atol=1e-6), name
