"""The cheapest time for every budget."""

import copy
import pickle
import re

import pytest
from chains import profiles
from hypothesis import given, settings

import rekindle


def test_the_points_are_the_command_s(root, four):
    snapshot = root / "crates/rekindle-cli/tests/snapshots/command__frontier_draws_a_picture_and_lists_every_point.snap"
    rows = re.findall(r"^ \S+ MiB +(\d+) +(\S+) ms +(\S+)% +(\S+)%$", snapshot.read_text(), re.M)
    found = rekindle.frontier(four)
    assert len(rows) == 6
    assert [point.budget_bytes for point in found] == [int(row[0]) for row in rows]
    assert [f"{point.step_ns / 1e6:.2f}" for point in found] == [row[1] for row in rows]
    assert [f"{point.overhead * 100:+.1f}" for point in found] == [row[2] for row in rows]
    assert all(point.gap == 0 for point in found)


@given(profiles())
@settings(deadline=None)
def test_every_point_has_its_plan_and_time_falls_as_budgets_rise(profile):
    found = rekindle.frontier(profile)
    assert found.smallest_budget_bytes == rekindle.smallest_budget(profile) == found[0].budget_bytes
    assert found[-1].budget_bytes == found.store_all_bytes
    assert found.fastest_ns == profile.lower_bound_ns
    for before, after in zip(found, list(found)[1:]):
        assert before.budget_bytes < after.budget_bytes
        assert before.step_ns > after.step_ns
    for point in found:
        plan = found.plan(point.budget_bytes)
        judged = rekindle.simulate(profile, plan)
        assert judged.peak_bytes <= point.budget_bytes
        assert judged.step_ns == point.step_ns
        assert found.at(point.budget_bytes) == point
        assert rekindle.plan(profile, point.budget_bytes, gap=0).predicted.step_ns == point.step_ns


def test_a_budget_below_all_points_is_refused(four):
    found = rekindle.frontier(four, time_limit=5)
    assert found.at("1MiB") is None
    assert found.at("100%") == found[-1]
    assert found.plan("smallest").predicted.peak_bytes <= found.smallest_budget_bytes
    with pytest.raises(rekindle.BudgetTooSmall) as caught:
        found.plan(found.smallest_budget_bytes - 1)
    assert caught.value.smallest_bytes == found.smallest_budget_bytes
    with pytest.raises(rekindle.SizeError):
        found.plan("lots")
    with pytest.raises(IndexError):
        found[len(found)]
    assert found.profile == four
    assert repr(found) == "Frontier('four', points=6, from=17.00 ms in 16.0 MiB, to=12.00 ms in 42.0 MiB)"


def test_a_frontier_is_pickled_if_it_is_complete(four):
    found = rekindle.frontier(four)
    assert found.is_complete
    again = pickle.loads(pickle.dumps(found))
    assert again == found and hash(again) == hash(found) and again.is_complete
    assert [again.plan(point.budget_bytes) for point in again] == [found.plan(point.budget_bytes) for point in found]
    assert copy.copy(found) is found and copy.deepcopy(found) is found
    another = rekindle.Profile.from_json(four.to_json().replace('"four"', '"another"'))
    assert found != rekindle.frontier(another) and found != 3


def test_one_that_was_stopped_is_not(four):
    # Many stages, each of its own kind, with options: more than can be looked at in no time.
    option = lambda size: rekindle.TapeOption(f"o{size}", 40 + size, 7 + size, 90 + size)
    stages = [
        rekindle.StageProfile(f"s{i}", 5 + i % 7, 99 + 13 * i % 31, 11 + 5 * i % 17, 30 + i, options=[option(i % 5), option(9)])
        for i in range(300)
    ]
    found = rekindle.frontier(rekindle.Profile("many", "cpu", 7, stages), time_limit=0)
    assert not found.is_complete
    with pytest.raises(TypeError, match="stopped by its time limit"):
        pickle.dumps(found)
    assert copy.deepcopy(found) is found
