"""From a plan to what the executor runs."""

from __future__ import annotations

import json
from typing import Any, Dict, FrozenSet, List, Sequence, Set, Tuple

import rekindle
from rekindle import _core
from rekindle.errors import ArgumentError, UnknownName

from .errors import PlanLength
from .keeping import PARTS


def unmeasured(names: Sequence[str], options: Sequence[str] = (), size: int = 0) -> Dict[str, Any]:
    """A profile of which only the structure is known, and the size of boundaries: enough to judge whether a plan can run."""
    of_option = [{"name": option, "tape_bytes": size, "forward_ns": 0, "backward_ns": 0} for option in options]
    stages = [
        {"name": name, "output_bytes": size, "tape_bytes": size, "forward_ns": 0, "backward_ns": 0, "options": of_option}
        for name in names
    ]
    return {
        "format": "rekindle.profile/1",
        "model": "unmeasured",
        "device": "unmeasured",
        "input_bytes": size,
        "stages": stages,
    }


def strategy_of(given: Any) -> str:
    """A strategy: the name of a solver or of a rule."""
    if not isinstance(given, str):
        raise ArgumentError(
            f"a strategy such as \"optimal\" or \"every-1\" was expected, found {given!r}", argument="strategy", found=repr(given)
        )
    if given == "every-K" or given not in rekindle.solvers():
        # It must be a rule; what is none is refused in the words that the planner has for it.
        try:
            schedule_by_rule(given, ["block"])
        except UnknownName as error:
            error.argument = "strategy"
            raise
    return given


def schedule_by_rule(rule: str, names: Sequence[str], options: Sequence[str] = ()) -> Tuple[Any, List[str], Any]:
    """The schedule of a rule, which needs no sizes, its actions and its plan."""
    profile = rekindle.Profile.from_json(json.dumps(unmeasured(names, options)))
    plan = rekindle.plan(profile, solver=rule)
    actions = actions_of(plan)
    return schedule_of(profile.to_json(), actions, len(names)), actions, plan


def schedule_of(profile: str, actions: List[str], stages: int) -> Any:
    """The actions, judged for a region of so many stages."""
    numbers = [int(action.split()[1]) for action in actions if action.startswith("backward ")]
    plan = max(numbers, default=0)
    if plan != stages:
        raise PlanLength(plan, stages)
    return _core.Schedule(profile, actions)


def actions_of(plan: Any) -> List[str]:
    """A plan's actions, each as a line of text."""
    return [str(action) for action in plan.actions]


def keeps_all(actions: List[str]) -> bool:
    """Whether every stage keeps its whole tape at once, so that there is nothing to do but to run them."""
    words = [action.split() for action in actions if action not in ("keep x0", "drop x0")]
    return all(word in ("tape", "backward") and not option for word, _, *option in words)


def run_again_in_parts(actions: List[str]) -> FrozenSet[int]:
    """Those of :func:`run_again_unread` that are run again in two parts."""
    return run_again_unread(actions, [PARTS])


def run_again_unread(actions: List[str], under: Sequence[str] = ()) -> FrozenSet[int]:
    """The stages that first run without a tape, and later with one, of which nobody reads the output."""
    ran: Set[int] = set()
    found: Set[int] = set()
    read: Set[int] = set()
    for position, action in enumerate(actions):
        word, subject, *option = action.split()
        if word == "forward":
            ran.add(int(subject))
        elif word == "tape" and option == list(under) and int(subject) in ran:
            number = int(subject)
            readers = {f"forward {number + 1}", f"tape {number + 1}", f"keep x{number}"}
            until = actions.index(f"backward {number}", position)
            row = actions[position + 1 : until]
            reads = any(" ".join(a.split()[:2]) in readers or a.split()[1] == f"x{number}" for a in row)
            (read if reads else found).add(number)
    return frozenset(found - read)


def without_surroundings(actions: List[str], before: bool, after: bool, stages: int) -> List[str]:
    """The actions of a region out of those of a whole step, in which what lies before it and after it are stages, too.

    What lies before is taped first and goes back last, and its output is there all that time; what lies after is taped
    when the region's output is there, and goes back at once.
    """
    shift = 1 if before else 0
    last = shift + stages
    kept: List[str] = ["keep x0"] if before else []
    for action in actions:
        word, subject, *rest = action.split()
        boundary = subject.startswith("x")
        number = int(subject[1:] if boundary else subject)
        if boundary:
            # The region's input belongs to what lies before, its output to what lies after.
            if (before and number <= shift) or (after and number >= last):
                continue
        elif (before and number <= shift) or number > last:
            continue
        kept.append(" ".join([word, f"x{number - shift}" if boundary else str(number - shift), *rest]))
    return kept + (["drop x0"] if before else [])
