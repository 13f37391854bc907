"""From a plan's actions to what a region does with them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rekindle.torch.schedules import keeps_all, run_again_unread, schedule_by_rule, without_surroundings

NAMES = [str(number) for number in range(6)]


@pytest.mark.parametrize(
    ("rule", "unread"),
    [
        ("store-all", set()),
        # The last block is taped at once; all others are run again for their backward alone.
        ("every-1", {1, 2, 3, 4, 5}),
        # Of a segment only the last block's output is read by nobody.
        ("every-2", {2, 4}),
        ("every-3", {3}),
        ("full", {1, 2, 3, 4, 5, 6}),
    ],
)
def test_stages_that_are_run_again_for_their_backward_alone(rule: str, unread: set) -> None:
    _, actions, _ = schedule_by_rule(rule, NAMES)
    assert run_again_unread(actions) == unread
    assert keeps_all(actions) == (rule == "store-all")


def test_an_output_that_is_kept_or_moved_is_read() -> None:
    actions = "forward 1/tape 2/backward 2/tape 1/keep x1/backward 1".split("/")
    assert run_again_unread(actions) == set()
    actions[4] = "offload x1 host"
    assert run_again_unread(actions) == set()
    actions[3] = "tape 1 smaller"
    del actions[4]
    assert run_again_unread(actions) == set(), "an option has its own way"


def test_a_region_out_of_a_whole_step() -> None:
    whole = "tape 1/keep x1/forward 2/tape 3 half/tape 4/backward 4/backward 3/tape 2/drop x1/backward 2/backward 1".split("/")
    found = without_surroundings(whole, before=True, after=True, stages=2)
    assert found == ["keep x0", "forward 1", "tape 2 half", "backward 2", "tape 1", "backward 1", "drop x0"]
    moved = "tape 1/forward 2/offload x2 host/tape 3/drop x2/tape 4/backward 4/backward 3/fetch x2 host".split("/")
    found = without_surroundings(moved, before=True, after=True, stages=2)
    assert found == ["keep x0", "forward 1", "offload x1 host", "tape 2", "drop x1", "backward 2", "fetch x1 host", "drop x0"]
    assert without_surroundings(["tape 1", "tape 2", "backward 2", "backward 1"], False, True, 1) == ["tape 1", "backward 1"]
