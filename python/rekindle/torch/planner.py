"""Finds the plan a region runs."""

from __future__ import annotations

import copy
import json
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import torch

import rekindle
from rekindle.errors import ArgumentError, BudgetTooSmall, OverBudget

from . import trees
from .arrange import Arrangement, arranged, arrangements, fits, is_result, with_options
from .budgets import at_least_one, in_bytes, margin_of, profile_of
from .errors import OtherModel, PlanLength
from .keeping import LEVELS, PARTS
from .measuring import RUNS, measure
from .offload import Places
from .region import Planned, Region
from .saved import Saved, plan_of
from .schedules import (
    actions_of,
    keeps_all,
    schedule_by_rule,
    schedule_of,
    strategy_of,
    unmeasured,
    without_surroundings,
)
from .whole_step import Surroundings, is_whole, region_of
from .wiring import Call

#: What is left free of a whole step's budget: PyTorch's allocator may hand out up to a mebibyte more than was asked for, as it
#: comes, and counts it as allocated. A plan is tried before it is used; this is for what differs from step to step.
MARGIN = 0.002

RULES = ("store-all", "full", "sqrt")


def is_rule(strategy: str) -> bool:
    """Whether a strategy needs no sizes."""
    return strategy in RULES or strategy.startswith("every-")


def _check_made_from(plan: rekindle.Plan, profile: rekindle.Profile) -> None:
    found, expected = plan.fingerprint, profile.fingerprint
    if found != expected:
        raise OtherModel(
            f"it was made for a profile with the fingerprint {found}, but this one has {expected}", found=found, expected=expected
        )


class Candidate(NamedTuple):
    """A profile to plan for, what is kept in host memory, and whether that is counted everywhere."""

    profile: Dict[str, Any]
    arrangement: Optional[Arrangement] = None
    everywhere: bool = True


class Planner:
    """What was asked of a region: a budget and a solver, a rule, or a plan of one's own."""

    def __init__(
        self,
        budget: Any = None,
        strategy: str = "optimal",
        *,
        plan: Any = None,
        profile: Any = None,
        places: Optional[Places] = None,
        margin: Optional[float] = None,
        runs: int = RUNS,
        model: str = "region",
        time_limit: float = 2.0,
        progress: Any = None,
    ):
        self.budget, self.strategy = in_bytes(budget), strategy_of(strategy)
        self.given_plan, self.given_profile = plan_of(plan), profile_of(profile)
        #: A plan that was saved with how it is run.
        self.saved: Optional[Saved] = None
        if isinstance(self.given_plan, Saved):
            self.saved, self.given_plan = self.given_plan, self.given_plan.plan
            self.given_profile = self.given_profile or self.saved.profile
        if self.given_plan is not None and self.given_profile is not None:
            _check_made_from(self.given_plan, self.given_profile)
        self.places = places or Places()
        self.margin, self.runs = margin_of(margin), at_least_one(runs, "runs")
        self.model, self.time_limit = model, time_limit
        self.progress = progress
        #: What lies around the region, when the budget is for a whole step; and the input it was measured with.
        self.surroundings: Optional[Surroundings] = None
        self.surveyed_bytes = 0
        #: What a step was seen to take beyond what was predicted.
        self.reserve = 0
        #: Whether somebody tells the region when the model returns.
        self.is_told = False
        #: Whether steps under a plan are run before it is used. Only then may a plan do without the margin.
        self.is_tried = False
        #: Whether PyTorch's allocator was seen to hand out what is asked for and no more.
        self.is_exact = False
        #: Whether the last plan does without the margin.
        self.to_the_brim = False
        #: What was measured, for as long as it may have to be planned again.
        self.measured: Optional[Tuple[Dict[str, Any], Dict[str, Any]]] = None
        self.latest: Optional[Tuple[Dict[str, Any], Dict[str, Any]]] = None
        if self.given_plan is None and self.budget is None and not is_rule(strategy):
            raise ArgumentError(
                f"`{strategy}` needs a budget, such as budget=\"8GiB\"; rules such as strategy=\"every-1\" need none",
                argument="budget",
            )

    def plan(self, region: Region, call: Call, tensors: List[torch.Tensor], spec: Tuple[Any, ...]) -> Planned:
        """The plan for inputs like these."""
        names = [stage.name for stage in region.stages]
        options = list(region.stages[0].ways)
        if self.saved is not None:
            return self._as_saved(self.saved, names, options, region, tensors)
        if self.given_plan is not None and self.given_profile is None:
            return self._as_given(names, options, region, tensors)
        if self.given_plan is None and is_rule(self.strategy) and self.budget is None:
            return Planned(*schedule_by_rule(self.strategy, names, options))
        known: Dict[str, Any] = {}
        if self.measured is not None:
            measured, known = copy.deepcopy(self.measured)
        elif self.given_profile is None:
            measured, known = measure(
                region.stages,
                call,
                tensors,
                spec,
                self.model,
                self.runs,
                bool(options),
                self.progress,
                region.hauntable,
                self.surroundings.time_ns() if self.surroundings else 0,
                [level for level in LEVELS if level in options and self.places.takes_keepsakes(tensors[0].device)],
            )
        else:
            measured = json.loads(self.given_profile.to_json())
            if self.given_plan is not None:
                # Those that this was measured to pay for when the plan was made.
                of_region = region_of(measured) if is_whole(measured) else measured
                known["haunted"] = [number for number, stage in enumerate(of_region["stages"], 1) if stage.get("unread_ns")]
        self.latest = copy.deepcopy((measured, known))
        return self._of_profile(measured, known, names, tensors)

    def _of_profile(
        self, whole: Dict[str, Any], known: Dict[str, Any], names: Sequence[str], tensors: List[torch.Tensor]
    ) -> Planned:
        around = self._around(tensors)
        measured = region_of(whole) if is_whole(whole) else whole
        self._check_profile(measured, names, tensors)
        stages = len(names)
        if self.places:
            # What a profile of another day says of places was true of that day's disk.
            self.places.open(measured, tensors[0])
        base = around.base_bytes if around else 0

        def complete(measured: Dict[str, Any], arrangement: Optional[Arrangement]) -> Dict[str, Any]:
            if is_whole(whole):
                return {**measured, "input_bytes": whole["input_bytes"], "stages": whole["stages"]}
            late_bytes = arrangement.late_bytes if arrangement else 0
            return around.around(measured, late_bytes) if around else measured

        beyond = (around.beyond_ns(), around.late_bytes()) if around and self.is_told else (0, 0)
        known["tiers"] = copy.deepcopy(measured.get("tiers", []))
        known["beyond_ns"], known["late_bytes"] = beyond
        known["run_again_ns"] = [2 * stage["forward_ns"] - stage.get("unread_ns", 0) for stage in measured["stages"]]
        candidates = [Candidate(measured)] if self.given_plan is not None else list(self._candidates(measured, known, beyond))
        plan, profile, measured, arrangement = self._best(candidates, complete, base)
        if self.given_plan is not None:
            self._check_budget(plan, base + plan.predicted.peak_bytes)
        stepwise = is_whole(json.loads(profile.to_json()))
        actions = actions_of(plan)
        if stepwise:
            actions = without_surroundings(actions, before=True, after=True, stages=stages)
        known["base_bytes"] = base
        known["whole_step"] = stepwise
        if arrangement is not None:
            known["haunted"] = sorted({*known["haunted"], *arrangement.levels})
            known["levels"] = arrangement.levels
        schedule = schedule_of(json.dumps(measured), actions, stages)
        planned = Planned(schedule, actions, plan, profile, self.places, known)
        planned.arrangement = arrangement
        # One who asks for a rule, or gives a plan, gets it.
        planned.keeps_all = self.given_plan is None and not is_rule(self.strategy) and keeps_all(actions)
        return planned

    def _best(
        self,
        candidates: Sequence[Candidate],
        complete: Callable[[Dict[str, Any], Optional[Arrangement]], Dict[str, Any]],
        base: int,
    ) -> Tuple[Any, Any, Dict[str, Any], Optional[Arrangement]]:
        """The plan with the least predicted time, over what stages may keep in host memory of their first run."""
        wholes = [complete(candidate.profile, candidate.arrangement) for candidate in candidates]
        profiles = [rekindle.Profile.from_json(json.dumps(whole)) for whole in wholes]
        # The margin is for what differs from step to step: nothing, where the allocator hands out what is asked for. Where there is
        # no plan with it, steps that are tried tell whether one without it fits.
        may_fill = self.is_tried and self.margin is None
        self.to_the_brim = may_fill and self.is_exact
        try:
            return self._best_of(candidates, profiles, base)
        except BudgetTooSmall:
            if self.to_the_brim or not may_fill:
                raise
        self.to_the_brim = True
        return self._best_of(candidates, profiles, base)

    def _best_of(
        self, candidates: Sequence[Candidate], profiles: Sequence[rekindle.Profile], base: int
    ) -> Tuple[Any, Any, Dict[str, Any], Optional[Arrangement]]:
        best: Optional[Tuple[Any, Any, Dict[str, Any], Optional[Arrangement]]] = None
        refused: Optional[BudgetTooSmall] = None
        for (candidate, arrangement, everywhere), profile in zip(candidates, profiles):
            try:
                plan = self.given_plan or self._solve(profile, base)
            except BudgetTooSmall as error:
                if refused is None or error.smallest_bytes < refused.smallest_bytes:
                    refused = error
                continue
            if arrangement is not None and not everywhere and not self._has_room(plan, profile, arrangement, base):
                continue
            if best is None or plan.predicted.step_ns < best[0].predicted.step_ns:
                best = plan, profile, candidate, arrangement
        if best is None:
            assert refused is not None
            raise refused
        return best

    def _has_room(self, plan: rekindle.Plan, profile: rekindle.Profile, arrangement: Arrangement, base: int) -> bool:
        usable = self.usable()
        if usable is None:
            return True
        peaks = [moment.peak_bytes for moment in rekindle.simulate(profile, plan).memory]
        shift = 1 if self.surroundings is not None else 0
        return fits(actions_of(plan), peaks, arrangement.known, arrangement, shift, usable - self.reserve - base)

    def usable(self) -> Optional[int]:
        """What a step may take: the budget without what stays free."""
        return None if self.budget is None else int(self.budget / (1 + self._margin()))

    def _margin(self) -> float:
        if self.margin is not None:
            return self.margin
        return MARGIN if self.surroundings is not None and not self.to_the_brim else 0.0

    def _candidates(
        self, measured: Dict[str, Any], known: Dict[str, Any], beyond: Tuple[int, int]
    ) -> Iterator[Candidate]:
        extras, kept = known.get("taped_extras", ()), known.get("kept", ())
        extras = extras if any(extras) else ()
        choices: List[Optional[Arrangement]] = [None]
        if any(kept):
            tier = measured["tiers"][0]
            speeds = tier["write_bytes_per_second"], tier["read_bytes_per_second"]
            choices += arrangements(measured, kept, *speeds, tier["capacity_bytes"], *beyond)
        for choice in choices:
            levels = sorted(set(choice.levels.values())) if choice else []
            found: List[Dict[str, Any]] = []
            # Options with small tapes need more room while they run than others need for theirs.
            options = {option["name"] for stage in measured["stages"] for option in stage.get("options", ())}
            ways: Tuple[Optional[List[str]], ...] = (None, [PARTS])
            if any(is_result(level) for level in levels):
                # What has a recipe is filled at once.
                ways = (sorted(options - {PARTS}), [])
            for names in ways:
                # On a CPU nobody has counted.
                counted = extras or ([{} for _ in measured["stages"]] if ways[0] is not None else ())
                profile = with_options(measured, counted, names, levels) if counted else measured
                if profile in found:
                    continue
                found.append(profile)
                if choice is None:
                    yield Candidate(profile)
                    continue
                for everywhere in (True, False):
                    yield Candidate(arranged(profile, kept, choice, known["rooms"], everywhere), choice, everywhere)

    def _around(self, tensors: List[torch.Tensor]) -> Optional[Surroundings]:
        if self.surroundings is None:
            return None
        size = sum(trees.tensor_bytes(tensor) for tensor in tensors)
        if size == self.surveyed_bytes:
            return self.surroundings
        return self.surroundings.scaled(size / max(self.surveyed_bytes, 1))

    def _solve(self, profile: rekindle.Profile, base: int) -> rekindle.Plan:
        arguments: Dict[str, Any] = {"solver": self.strategy}
        if not is_rule(self.strategy):
            arguments.update(time_limit=self.time_limit)
        margin, most = self._margin(), self.usable()
        if self.budget is None or most is None:
            return rekindle.plan(profile, **arguments)
        try:
            usable = most - self.reserve
            if usable <= base:
                raise BudgetTooSmall(smallest_bytes=rekindle.smallest_budget(profile))
            return rekindle.plan(profile, usable - base, **arguments)
        except BudgetTooSmall as error:
            if base == 0 and margin == 0:
                raise
            free = f" and {margin:.1%} stay free" if margin else ""
            smallest = int((error.smallest_bytes + base + self.reserve) * (1 + margin)) + 1
            raise BudgetTooSmall(
                f"no plan takes {rekindle.format_bytes(self.budget)} ({self.budget} bytes) or less; the smallest budget is "
                f"{rekindle.format_bytes(smallest)} ({smallest} bytes), of which {rekindle.format_bytes(base)} are there "
                f"before the step begins (parameters, the optimizer's state, the batch){free}",
                hint="a smaller batch or a shorter sequence would lower it",
                budget_bytes=self.budget,
                smallest_bytes=smallest,
            ) from None

    def _as_given(
        self, names: Sequence[str], options: Sequence[str], region: Region, tensors: List[torch.Tensor]
    ) -> Planned:
        """A plan without a profile: all that can be checked is that it can be run. What it takes here nobody knows."""
        plan = self.given_plan
        assert plan is not None
        actions = actions_of(plan)
        size = sum(trees.tensor_bytes(tensor) for tensor in tensors)
        profile = unmeasured(names, options, size)
        if any(action.startswith(("offload ", "compress ")) for action in actions):
            self.places.open(profile, tensors[0])
        return Planned(schedule_of(json.dumps(profile), actions, len(names)), actions, plan, None, self.places)

    def _as_saved(
        self, saved: Saved, names: Sequence[str], options: Sequence[str], region: Region, tensors: List[torch.Tensor]
    ) -> Planned:
        """A plan as it ran when it was saved."""
        keeps = saved.arrangement is not None
        if keeps and not self.places.takes_keepsakes(tensors[0].device):
            raise ArgumentError(
                "the plan keeps results in host memory beside a CUDA device; give host=, such as host=\"32GiB\", and no host_codec",
                argument="host",
            )
        if self.given_profile is None:
            planned = self._as_given(names, options, region, tensors)
        else:
            whole = json.loads(self.given_profile.to_json())
            stepwise = is_whole(whole)
            measured = region_of(whole) if stepwise else whole
            self._check_profile(measured, names, tensors)
            # Where everything is kept it was tried: what that took is what counts.
            predicted = saved.known.get("base_bytes", 0) + saved.plan.predicted.peak_bytes
            self._check_budget(saved.plan, saved.known.get("measured_peak_bytes", predicted))
            actions = actions_of(saved.plan)
            if stepwise:
                actions = without_surroundings(actions, before=True, after=True, stages=len(names))
            if keeps or any(action.startswith(("offload ", "compress ")) for action in actions):
                self.places.open(measured, tensors[0])
            schedule = schedule_of(json.dumps(measured), actions, len(names))
            planned = Planned(schedule, actions, saved.plan, self.given_profile, self.places)
        planned.known = {**saved.known, "haunted": saved.haunted, "recipes": saved.recipes}
        planned.haunted = frozenset(saved.haunted)
        planned.keeps_all = saved.keeps_all
        if saved.arrangement is not None:
            planned.arrangement = saved.arrangement if self.is_told else saved.arrangement.gone_by_the_end(len(names))
            planned.known["levels"] = saved.arrangement.levels
        return planned

    def _check_budget(self, plan: rekindle.Plan, peak: int) -> None:
        """A plan that was given keeps to the budget as one that is made does."""
        if self.budget is None or peak <= self.budget:
            return
        raise OverBudget(
            f"`{plan.solver}` takes {rekindle.format_bytes(peak)} at its peak ({peak} bytes), but the budget is "
            f"{rekindle.format_bytes(self.budget)} ({self.budget} bytes)",
            hint="give a larger budget, or leave plan= out, so that one is made for this budget",
            solver=plan.solver,
            peak_bytes=peak,
            budget_bytes=self.budget,
        )

    def _check_profile(self, profile: Dict[str, Any], names: Sequence[str], tensors: List[torch.Tensor]) -> None:
        found = [stage["name"] for stage in profile["stages"]]
        if len(found) != len(names):
            raise PlanLength(len(found), len(names))
        for number, pair in enumerate(zip(names, found), 1):
            if pair[0] != pair[1]:
                raise OtherModel(f"the name of stage {number}: found {pair[0]}, expected {pair[1]}")
        size = sum(trees.tensor_bytes(tensor) for tensor in tensors)
        if size != profile["input_bytes"]:
            raise OtherModel(f"the input: found {size} bytes, expected {profile['input_bytes']}")
