"""What training takes, before anything is built."""

import copy
import pickle
import re

import pytest

import rekindle
from rekindle import EstimateError, UnknownName


def rows(root, name):
    text = (root / f"crates/rekindle-cli/tests/snapshots/estimate__{name}.snap").read_text()
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def test_the_rows_are_the_command_s(root):
    found = rekindle.estimate("gpt2", batch=8, fit="24GiB")
    shown = {cells[0]: cells[1:] for cells in rows(root, "estimate") if len(cells) == 7}
    size = rekindle.format_bytes
    assert {
        row.strategy: [
            size(row.activations_bytes),
            size(row.workspace_bytes),
            size(row.total_bytes),
            f"{row.overhead * 100:+.1f}%",
            str(row.largest_batch),
            f"{row.longest:,}",
        ]
        for row in found
    } == {strategy: cells for strategy, cells in shown.items() if strategy != "strategy"}
    assert len(found) == 7
    assert [size(found.weights_bytes), size(found.optimizer_bytes)] == ["237.4 MiB", "1.4 GiB"]
    assert found.state_bytes == 16 * found.parameters
    assert found.rules_of_thumb[0].startswith("rule: s b h (34 + 5 a s / h) a layer")


def test_the_models_are_the_command_s(root):
    shown = {cells[0]: cells[1:] for cells in rows(root, "estimate-list") if len(cells) == 4 and cells[0] != "model"}
    assert {name: f"{count:,}" for name, count in rekindle.presets().items()} == {
        name: cells[0] for name, cells in shown.items()
    }
    assert len(shown) == 14


def test_what_is_counted_can_be_planned():
    found = rekindle.estimate("gpt2", layers=3, width=128, heads=4, vocabulary=256, length=64)
    assert found.layers == 3 and found.length == 64
    assert [stage.name for stage in found.profile][1:4] == ["block.0", "block.1", "block.2"]
    assert len(found.parts) > len(found.profile)
    plan = rekindle.plan(found.parts, found["full"].activations_bytes * 4)
    assert rekindle.simulate(found.parts, plan).peak_bytes <= plan.budget_bytes
    assert rekindle.estimate("resnet-50").parts is None


def test_settings_change_what_they_say():
    usual = rekindle.estimate("gpt2")
    activations = lambda **changes: rekindle.estimate("gpt2", **changes)["none"].activations_bytes
    assert activations(precision="f32") > usual["none"].activations_bytes
    assert activations(attention="linear") < usual["none"].activations_bytes
    assert activations(keeping="nodes") < usual["none"].activations_bytes
    assert activations(dropout=False) < usual["none"].activations_bytes
    assert activations(tensor_parallel=4) < usual["none"].activations_bytes
    assert activations(tensor_parallel=4, sequence_parallel=True) < activations(tensor_parallel=4)
    assert activations(pipeline=4) != usual["none"].activations_bytes
    spread = rekindle.estimate("gpt2", zero=3, data_parallel=8)
    assert spread.weights_bytes * 8 == usual.weights_bytes
    assert rekindle.estimate("gpt2", every=2)["every-2"].strategy == "every-2"
    assert [row.strategy for row in usual][1:3] == [usual[1].strategy, usual[2].strategy]
    assert usual[-1] == usual.rows[-1] and usual[:2] == usual.rows[:2]
    assert usual["none"].largest_batch is None
    assert rekindle.estimate("gpt2", fit="1MiB")["none"].largest_batch is None


@pytest.mark.parametrize(
    ("model", "changes", "words"),
    [
        ("gpt2", {"batch": 0}, "the batch is 0, expected at least 1"),
        ("gpt2", {"heads": 5}, "cannot be divided by"),
        ("gpt2", {"length": 2048}, "a length of 2048 is asked for, but `gpt2` has 1024 positions"),
        ("gpt2", {"pipeline": 13}, "a pipeline of 13 ranks is asked for, but there are 12 layers"),
        ("gpt2", {"batch": 2**64 - 1}, "more than 2\\^64"),
        ("gpt2", {"layers": 2**63}, "the number of layers is 9223372036854775808, expected at most 10000"),
        ("gpt2", {"width": 2**63, "heads": 2}, "more than 2\\^64"),
        ("resnet-50", {"layers": 3}, "has no layers, width or heads to change"),
        ("resnet-50", {"keeping": "nodes"}, "is counted on one rank"),
    ],
)
def test_numbers_that_do_not_go_together_are_named(model, changes, words):
    with pytest.raises(EstimateError, match=words) as caught:
        rekindle.estimate(model, **changes)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "argument"),
    [({"zero": 4}, "zero"), ({"pipeline": 0}, "pipeline"), ({"every": 0}, "every"), ({"batch": -1}, "batch")],
)
def test_numbers_out_of_range_are_named(changes, argument):
    with pytest.raises(rekindle.ArgumentError) as caught:
        rekindle.estimate("gpt2", **changes)
    assert caught.value.argument == argument


def test_names_that_nobody_knows_are_refused_with_the_one_that_was_meant():
    for arguments, nearest, argument in [
        ({"model": "gpt-2"}, "gpt2", "model"),
        ({"precision": "fp16"}, "f16", "precision"),
        ({"attention": "linaer"}, "linear", "attention"),
        ({"keeping": "node"}, "nodes", "keeping"),
    ]:
        with pytest.raises(UnknownName) as caught:
            rekindle.estimate(**arguments)
        assert (caught.value.nearest, caught.value.argument) == (nearest, argument)
        assert caught.value.found in arguments.values()
    with pytest.raises(UnknownName, match="no strategy named `some`") as caught:
        rekindle.estimate("gpt2")["some"]
    assert "none" in caught.value.known


def test_an_estimate_is_pickled():
    many = dict(
        layers=4, width=128, heads=4, key_value_heads=2, hidden=320, vocabulary=256, batch=3, length=64, precision="f32",
        attention="linear", dropout=False, every=2, zero=2, data_parallel=2, tensor_parallel=2, pipeline=2,
        sequence_parallel=True, fit="1GiB",
    )
    for found in [rekindle.estimate(), rekindle.estimate("llama-7b", **many), rekindle.estimate("gpt2", keeping="nodes")]:
        again = pickle.loads(pickle.dumps(found))
        assert again == found and hash(again) == hash(found) and repr(again) == repr(found)
        assert again.profile == found.profile and again.rows == found.rows and copy.deepcopy(found) == found
    assert rekindle.estimate(batch=2) != rekindle.estimate(batch=3) and rekindle.estimate() != 3
