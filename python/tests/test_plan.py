"""Plans: what the command finds, what the simulator accepts, what is refused."""

import copy
import json
import os
import pickle
import re
import subprocess

import pytest
from chains import profiles
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle
from rekindle import (
    BudgetTooSmall,
    IllegalPlan,
    OtherModel,
    OverBudget,
    Plan,
    PlanError,
    Profile,
    SizeError,
    SolveError,
    StageProfile,
    Tier,
    TooFewSlots,
    UnknownName,
    WrongType,
    plan,
    simulate,
)

SOLVERS = ["optimal", "revolve", "mixed", "online", "eager", "store-all", "full", "sqrt", "every-2"]


def test_the_plan_is_the_one_the_command_shows(root, four):
    shown = (root / "crates/rekindle-cli/tests/snapshots").joinpath(
        "command__plan_says_what_it_found_and_how_good_it_is.snap"
    )
    rows = dict(re.findall(r"^ (\S.*?)  +(\S.*)$", shown.read_text(), re.M))
    found = plan(four, "30MiB")
    judged = simulate(four, found)
    of_budget = found.predicted.peak_bytes / found.budget_bytes
    assert rows["status"] == found.status
    assert rows["budget"] == rekindle.format_bytes(found.budget_bytes)
    assert rows["peak"] == f"{rekindle.format_bytes(found.predicted.peak_bytes)}, {of_budget:.1%} of the budget"
    assert rows["reached at"] == f"action {judged.peak_action} (`{found[judged.peak_action]}`)"
    assert rows["step"] == f"{found.predicted.step_ns / 1e6:.2f} ms ({judged.overhead:+.1%} over store-all)"
    assert rows["of it recomputing"] == f"{found.predicted.recompute_ns / 1e6:.2f} ms"
    assert rows["no such plan is faster than"] == f"{found.predicted.lower_bound_ns / 1e6:.2f} ms"
    assert rows["stage forwards"] == f"{found.predicted.forwards} for 4 stages"
    assert rows["actions"] == str(len(found))
    alive = {what: rekindle.format_bytes(size) for what, size in judged.peak_tensors}
    assert alive == {what: rows[what] for what in alive} and "tape 4" in alive


@pytest.mark.skipif("REKINDLE_COMMAND" not in os.environ, reason="REKINDLE_COMMAND names no `rekindle` to compare with")
@pytest.mark.parametrize("asked", [["--budget", "30MiB"], ["--budget", "70%", "--margin", "5%"], ["--solver", "sqrt"]])
@pytest.mark.parametrize("name", ["four", "two", "estimated"])
def test_the_plan_is_the_command_s_byte_for_byte(tmp_path, root, four, asked, name):
    profile = {
        "four": four,
        "two": Profile.load(root / "fuzz/seeds/profile_json/two.json"),
        "estimated": rekindle.estimate("gpt2").profile,
    }[name]
    path = tmp_path / "profile.json"
    profile.save(path)
    named = {"--budget": "budget", "--margin": "margin", "--solver": "solver"}
    arguments = {named[flag]: value for flag, value in zip(asked[::2], asked[1::2])}
    command = [os.environ["REKINDLE_COMMAND"], "plan", str(path), *asked, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        with pytest.raises(PlanError) as caught:
            plan(profile, **arguments)
        said = ran.stderr.splitlines()[0]
        # The command goes on with what sets the smallest budget, and what would lower it.
        assert said.split(", which `")[0] == f"error: {caught.value.message}"
    else:
        assert plan(profile, **arguments).to_json() == ran.stdout.rstrip("\n")


def test_a_committed_plan_reads_and_is_refused_for_another_model(root):
    found = Plan.load(root / "fuzz/seeds/plan_json/two.json")
    profile = Profile.load(root / "fuzz/seeds/profile_json/two.json")
    assert found.solver == "every-1"
    assert (found.status, found.gap) == ("feasible", 0.01)
    assert found.budget_bytes == 64
    assert found[-1] == "backward 1" and found[4] == "tape 1 light"
    assert found.predicted.step_ns == 33
    with pytest.raises(OtherModel, match="fingerprint xxh3-128:0+, but this one has") as caught:
        simulate(profile, found)
    assert caught.value.found == found.fingerprint
    assert caught.value.expected == profile.fingerprint
    # The same actions, for this model.
    assert simulate(profile, found.actions).peak_bytes == simulate(profile, found[:]).peak_bytes > 0


@given(profiles(), st.integers(0, 400), st.sampled_from(SOLVERS))
@settings(deadline=None)
def test_no_plan_takes_more_than_its_budget_and_the_judge_agrees(profile, budget, solver):
    try:
        found = plan(profile, budget, solver=solver)
    except BudgetTooSmall as error:
        assert error.smallest_bytes > budget == error.budget_bytes
        assert plan(profile, error.smallest_bytes, solver=solver).predicted.peak_bytes <= error.smallest_bytes
        return
    except OverBudget as error:
        assert error.peak_bytes > budget
        return
    except IllegalPlan as error:
        # A rule knows nothing of stages that must run once.
        assert "pinned" in error.reason and any(stage.pinned for stage in profile)
        return
    except SolveError as error:
        assert error.kind == "pinned" and any(stage.pinned for stage in profile)
        return
    judged = simulate(profile, found)
    assert judged.peak_bytes == found.predicted.peak_bytes <= budget
    assert judged.step_ns == found.predicted.step_ns >= found.predicted.lower_bound_ns >= profile.lower_bound_ns
    assert judged.step_ns - judged.recompute_ns >= 0
    assert max(moment.peak_bytes for moment in judged.memory) == judged.peak_bytes
    assert judged.memory[judged.peak_action].peak_bytes == judged.peak_bytes
    assert sum(size for _, size in judged.peak_tensors) == judged.peak_bytes


@given(profiles())
@settings(deadline=None)
def test_more_room_is_never_slower_and_the_smallest_budget_is_the_smallest(profile):
    smallest = rekindle.smallest_budget(profile)
    budgets = [smallest + more for more in (0, 1, 3, 10, 30, 100, 300)]
    steps = [plan(profile, budget, gap=0).predicted.step_ns for budget in budgets]
    assert steps == sorted(steps, reverse=True)
    assert plan(profile, "smallest").budget_bytes == smallest
    if smallest > 0:
        with pytest.raises(BudgetTooSmall) as caught:
            plan(profile, smallest - 1)
        assert caught.value.smallest_bytes == smallest


@given(profiles(), st.integers(0, 300))
@settings(deadline=None)
def test_plans_come_back_as_they_were_and_are_the_same_every_time(profile, more):
    found = plan(profile, rekindle.smallest_budget(profile) + more)
    assert plan(profile, found.budget_bytes) == found
    assert Plan.from_json(found.to_json()) == found
    assert pickle.loads(pickle.dumps(found)) == found
    assert copy.copy(found) == found and hash(copy.copy(found)) == hash(found)
    judged = simulate(profile, found)
    assert pickle.loads(pickle.dumps(judged)) == judged
    assert Plan.of_actions(profile, found).predicted.peak_bytes == found.predicted.peak_bytes
    # A legal plan ends when it ends.
    with pytest.raises(IllegalPlan) as caught:
        simulate(profile, found[:-1])
    assert caught.value.action_index == len(found) - 1 and caught.value.action is None


def test_every_solver_plans(four):
    assert set(SOLVERS) - {"every-2"} < set(rekindle.solvers())
    placed = four.with_places([Tier("host", 99_999_999, "1GB", "1GB")])
    for name in rekindle.solvers():
        solver = "every-4" if name == "every-K" else name
        found = plan(placed, "64MiB", solver=solver)
        assert found.solver == solver
        assert simulate(placed, found).peak_bytes <= 64 * 2**20
    assert plan(four, solver="revolve", slots=2).predicted.forwards > 4


def test_budgets_are_read_as_people_write_them(four):
    all_of_it = plan(four, solver="store-all").predicted.peak_bytes
    assert all_of_it == 42 * 2**20
    assert plan(four, "30MiB") == plan(four, 30 * 2**20)
    assert plan(four, "70%").budget_bytes == int(all_of_it * 0.7)
    assert plan(four, "100%").predicted.forwards == 4
    assert plan(four, "30MiB", margin="5%").predicted.peak_bytes * 1.05 <= 30 * 2**20
    assert plan(four, "30MiB", margin=0.05) == plan(four, "30MiB", margin="5%")
    assert plan(four, budget="30MiB", time_limit=0.5, gap="2%").budget_bytes == 30 * 2**20


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ("lots", "`lots` is not a size: .*, or a part of what store-all takes such as 30%, or smallest"),
        (-1, "`-1` is not a size"),
        (0.4, "`0.4` is not a size"),
        (float("nan"), "`nan` is not a size"),
        ("1e9%", "`1e9%` is not a fraction: expected 0% to 1000%, such as 5%, or 0.05"),
        ("-1%", "`-1%` is not a fraction"),
        ("nan%", "`nan%` is not a fraction"),
    ],
)
def test_what_is_no_budget_is_refused(four, budget, words):
    with pytest.raises(rekindle.ArgumentError, match=words) as caught:
        plan(four, budget)
    assert caught.value.argument == "budget"
    assert isinstance(caught.value, SizeError) == ("size" in words)


def test_a_budget_that_is_too_small_says_which_is_not(four):
    with pytest.raises(BudgetTooSmall) as caught:
        plan(four, "5MiB")
    error = caught.value
    assert (error.solver, error.budget_bytes, error.smallest_bytes) == ("optimal", 5 * 2**20, 16 * 2**20)
    assert error.message == (
        "`optimal` has no plan within 5.0 MiB (5242880 bytes); the smallest budget it can meet is 16.0 MiB "
        "(16777216 bytes)"
    )
    assert str(error) == f"{error.message}\nhint: give budget=16777216 or more"
    with pytest.raises(BudgetTooSmall) as caught:
        plan(four, "16MiB", margin="10%")
    enough = caught.value.smallest_bytes
    assert plan(four, enough, margin="10%").predicted.peak_bytes <= enough / 1.1


def test_each_refusal_has_its_type_its_words_and_its_parts(four):
    with pytest.raises(SolveError, match="`optimal` needs a budget") as caught:
        plan(four)
    assert (caught.value.kind, caught.value.solver) == ("nothing to meet", "optimal")
    with pytest.raises(OverBudget, match="`store-all` takes 42.0 MiB at its peak") as caught:
        plan(four, "30MiB", solver="store-all")
    assert (caught.value.peak_bytes, caught.value.budget_bytes) == (42 * 2**20, 30 * 2**20)
    with pytest.raises(TooFewSlots, match="needs at least 1 slots for 4 stages, but got 0") as caught:
        plan(four, solver="revolve", slots=0)
    assert (caught.value.slots, caught.value.least, caught.value.stages) == (0, 1, 4)
    with pytest.raises(SolveError, match="needs .* in the profile") as caught:
        plan(four, "64MiB", solver="multi-level")
    assert caught.value.kind == "no tier"
    with pytest.raises(SolveError, match="which is pinned") as caught:
        plan(four.with_stages([stage.replace(pinned=True) for stage in four]), "64MiB", solver="revolve")
    assert (caught.value.kind, caught.value.stage) == ("pinned", 1)
    with pytest.raises(rekindle.ArgumentError, match="`optimal` counts no slots") as caught:
        plan(four, "30MiB", slots=3)
    assert caught.value.argument == "slots"
    for margin in [5, float("nan"), -0.1, "5", "much"]:
        with pytest.raises(rekindle.ArgumentError, match="is not a fraction") as caught:
            plan(four, "30MiB", margin=margin)
        assert caught.value.argument == "margin"
    for limit in [-1, float("nan")]:
        with pytest.raises(rekindle.ArgumentError, match="is not a time limit"):
            plan(four, "30MiB", time_limit=limit)
    assert plan(four, "30MiB", time_limit=float("inf")).status == "optimal"


def test_a_solver_that_nobody_knows_is_refused_with_the_one_that_was_meant(four):
    with pytest.raises(UnknownName, match="`optimsl` is not a solver: expected optimal, revolve") as caught:
        plan(four, "30MiB", solver="optimsl")
    assert (caught.value.found, caught.value.nearest) == ("optimsl", "optimal")
    assert caught.value.hint == 'did you mean "optimal"?'
    with pytest.raises(UnknownName) as caught:
        plan(four, "30MiB", solver="magic")
    assert caught.value.nearest is None and caught.value.known == list(rekindle.solvers())


def test_a_policy_says_what_is_kept(four):
    found = plan(four, policy="recompute-all, keep block.2")
    assert (found.status, found.gap) == ("policy", None)
    # The chain is cut behind block.2: what lies before it runs again, what lies behind it does not.
    assert [stage.forwards for stage in rekindle.explain(four, found).stages] == [2, 2, 2, 1]
    with pytest.raises(rekindle.PolicyError, match="no boundary|no stage") as caught:
        plan(four, policy="recompute-all, keep blokc.2")
    assert "block.2" in caught.value.message
    with pytest.raises(rekindle.PolicyError):
        plan(four, policy="do what you like")
    with pytest.raises(OverBudget):
        plan(four, 1, policy="recompute-all")
    with pytest.raises(rekindle.ArgumentError, match="`policy` is given together"):
        plan(four, policy="recompute-all", solver="optimal")


def test_illegal_plans_say_which_action_and_why(four):
    with pytest.raises(IllegalPlan) as caught:
        simulate(four, ["keep x0", "forward 1", "backward 4"])
    error = caught.value
    assert (error.action_index, error.action) == (2, "backward 4")
    assert error.reason == "stage 4 needs the gradient of x4, but the forward half is not over"
    assert error.message == f"the plan is not legal: action 2 (`backward 4`) cannot run: {error.reason}"
    with pytest.raises(IllegalPlan, match="there is no stage 9, expected 1 to 4"):
        simulate(four, ["forward 9"])
    with pytest.raises(IllegalPlan, match="no tier `host`"):
        simulate(four, ["offload x0 host"])
    with pytest.raises(IllegalPlan):
        simulate(four, [])


@pytest.mark.parametrize("actions", [["jump 3"], ["forward"], ["forward -1"], ["forward 1 2 3 4"], [""]])
def test_what_is_no_action_is_refused(four, actions):
    with pytest.raises(PlanError, match="expected") as caught:
        simulate(four, actions)
    assert not isinstance(caught.value, IllegalPlan)


@pytest.mark.parametrize("found", ["forward 1", 7, None, [1], [["forward 1"]]])
def test_what_is_no_plan_is_refused(four, found):
    with pytest.raises(WrongType):
        simulate(four, found)
    with pytest.raises(WrongType):
        rekindle.explain(four, found)
    with pytest.raises(TypeError):
        simulate("profile", found)


def test_a_plan_that_lies_about_its_budget_is_refused(four):
    file = json.loads(plan(four, "30MiB").to_json())
    file["budget_bytes"] = 1
    with pytest.raises(OverBudget, match="but the budget is 1 B"):
        simulate(four, Plan.from_json(json.dumps(file)))
    file["format"] = "rekindle.plan/9"
    with pytest.raises(PlanError, match="expected \"rekindle.plan/1\"") as caught:
        Plan.from_json(json.dumps(file))
    assert (caught.value.kind, caught.value.expected) == ("version", "rekindle.plan/1")
    with pytest.raises(PlanError, match="ends too early") as caught:
        Plan.from_json('{"format": "rekindle.plan/1",\n')
    assert (caught.value.kind, caught.value.line) == ("truncated", 2)


def test_errors_are_values_too(four):
    with pytest.raises(BudgetTooSmall) as caught:
        plan(four, 1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is BudgetTooSmall and str(again) == str(caught.value)
    assert again.smallest_bytes == caught.value.smallest_bytes
    assert isinstance(again, rekindle.RekindleError)


def test_what_the_command_says_of_a_judged_plan(root, four):
    text = (root / "crates/rekindle-cli/tests/snapshots/command__simulate_json.snap").read_text()
    expected = json.loads(text[text.index("{") : text.rindex("}") + 1])
    judged = simulate(four, plan(four, "64MiB", solver="sqrt"))
    figures = ["peak_bytes", "peak_action", "step_ns", "recompute_ns", "wait_ns", "lower_bound_ns", "forwards"]
    assert {name: getattr(judged, name) for name in figures} == {name: expected[name] for name in figures}
    assert judged.budget_bytes == expected["budget_bytes"]
    assert judged.peak_tensors == [(live["what"], live["bytes"]) for live in expected["peak_tensors"]]
    assert [moment.peak_bytes for moment in judged.memory] == expected["peaks"]
    assert len(judged.plan) == expected["actions"]
    assert judged.plan[: judged.turn][-1] == "tape 4"


def test_time_runs_through_the_step_and_transfers_beside_it(four):
    placed = four.with_places([Tier("host", "1GiB", "1GB", "1GB")])
    actions = ["offload x0 host", "tape 1", "tape 2", "tape 3", "tape 4"]
    actions += [f"backward {stage}" for stage in (4, 3, 2)] + ["drop x0 host", "backward 1"]
    judged = simulate(placed, actions)
    offload, first = judged.memory[0], judged.memory[1]
    assert offload.end_ns == 2**20 and first.reached_ns == first.start_ns == 0
    assert [moment.action for moment in judged.memory] == actions
    assert judged.memory[-1].end_ns == judged.step_ns


def test_the_explanation_is_the_command_s(root, four):
    snapshot = root / "crates/rekindle-cli/tests/snapshots/command__plan_writes_a_plan_that_simulate_and_explain_read.snap"
    expected = snapshot.read_text()
    found = rekindle.explain(four, plan(four, "70%", margin="5%"))
    assert found.summary in expected.splitlines()
    assert found.peak in expected.splitlines()
    shown = re.findall(r"^ (x\d+) +(\S+ \S+) +(\S+) +actions (\d+) to (\d+) +run stage (\d+) again$", expected, re.M)
    stays = [
        (stay.boundary, rekindle.format_bytes(stay.bytes), stay.place, str(stay.from_action), str(stay.to_action))
        for stay in found.kept
    ]
    assert stays == [row[:5] for row in shown] and len(shown) == 2
    assert [stay.runs_again for stay in found.kept] == [(int(row[5]), int(row[5])) for row in shown]
    assert [stage.forwards for stage in found.stages] == [1, 2, 2, 1]
    assert [stage.taped_first for stage in found.stages] == [True, False, False, True]
    assert "2 to 3 (block.1 to block.2): run 2 times, tape made again for the backward" in str(found)


def test_reprs_tell(four):
    found = plan(four, "30MiB")
    assert repr(found) == (
        "Plan('optimal', status='optimal', budget=30.0 MiB, peak=25.0 MiB, step=14.00 ms, recompute=2.00 ms, actions=14)"
    )
    assert repr(four) == "Profile('four', 'flex', stages=4, input=1.0 MiB, store_all=42.0 MiB)"
    assert "peak=25.0 MiB at action 6 ('backward 4')" in repr(simulate(four, found))
    assert repr(StageProfile("it's", 1, 2)).startswith('StageProfile("it\'s"')
