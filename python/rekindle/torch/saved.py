"""Plans in files, with all that a region needs to run them as it did when they were made.

A plan alone says which stages run again. It does not say what their second runs leave out, which results wait in host memory and
when these travel, or that everything fits and the blocks run as they are. That was measured, and is written down beside the plan.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional, Tuple

import torch

import rekindle
from rekindle.errors import ArgumentError, PlanError

from .arrange import Arrangement
from .errors import NotSaved, OtherModel
from .recipes import KEEP, RUN, SKIP, Recipe

FORMAT = "rekindle.torch-plan/1"

#: What is known of a region beside its plan and profile, in numbers and words.
KNOWN = ("base_bytes", "whole_step", "sized", "measured_peak_bytes", "tried_peak_bytes")

_Recipes = Dict[int, Dict[str, Recipe]]


class Saved:
    """A plan, the profile it was made from, and how it is run."""

    def __init__(
        self,
        plan: rekindle.Plan,
        profile: Optional[rekindle.Profile],
        keeps_all: bool,
        haunted: List[int],
        arrangement: Optional[Arrangement],
        recipes: _Recipes,
        known: Dict[str, Any],
    ):
        self.plan, self.profile, self.keeps_all = plan, profile, keeps_all
        self.haunted, self.arrangement, self.recipes, self.known = haunted, arrangement, recipes, known

    @classmethod
    def of(cls, planned: Any) -> "Saved":
        """What a region runs."""
        arrangement = planned.arrangement
        recipes: _Recipes = {}
        for number, level in (arrangement.levels if arrangement is not None else {}).items():
            recipe = planned.known.get("recipes", {}).get(number, {}).get(level)
            if recipe is not None:
                recipes[number] = {level: recipe}
        known = {name: planned.known[name] for name in KNOWN if name in planned.known}
        haunted = sorted(planned.haunted)
        return cls(planned.plan, planned.profile, planned.keeps_all, haunted, arrangement, recipes, known)

    def to_json(self) -> str:
        recipes, numbers = _numbered(self.recipes)
        file: Dict[str, Any] = {
            "format": FORMAT,
            "torch": torch.__version__,
            "keeps_all": self.keeps_all,
            "run_again_unread": self.haunted,
            "known": self.known,
            "keepsakes": None,
            "plan": json.loads(self.plan.to_json()),
            "profile": None if self.profile is None else json.loads(self.profile.to_json()),
        }
        if self.arrangement is not None:
            made = self.arrangement
            file["keepsakes"] = {
                "levels": {str(number): level for number, level in made.levels.items()},
                "released_at": {str(number): stage for number, stage in made.releases.items()},
                "fetched_at": {str(stage): numbers for stage, numbers in made.fetches.items()},
                "late_bytes": made.late_bytes,
                "recipe_of": {str(number): index for number, index in numbers.items()},
                "recipes": recipes,
            }
        return json.dumps(file, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Saved":
        file = json.loads(text)
        try:
            if file["format"] != FORMAT:
                raise PlanError(f"the format is {file['format']!r}, expected {FORMAT!r}", kind="version")
            arrangement, recipes = _read_keepsakes(file["keepsakes"])
            profile = file["profile"]
            return cls(
                rekindle.Plan.from_json(json.dumps(file["plan"])),
                None if profile is None else rekindle.Profile.from_json(json.dumps(profile)),
                bool(file["keeps_all"]),
                [int(number) for number in file["run_again_unread"]],
                arrangement,
                recipes,
                {name: file["known"][name] for name in KNOWN if name in file["known"]},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, rekindle.RekindleError):
                raise
            found = f"{type(error).__name__}: {error}"
            raise PlanError(f"the text is not a plan of the format {FORMAT} ({found})", kind="invalid") from error

    def save(self, path: Any) -> None:
        """Writes a file as a whole: what was there before stays until the new text is complete."""
        part = f"{os.fspath(path)}.{os.getpid()}.part"
        try:
            with open(part, "w", encoding="utf-8") as file:
                file.write(self.to_json() + "\n")
            os.replace(part, path)
        except BaseException:
            if os.path.exists(part):
                os.remove(part)
            raise


def plan_of(given: Any) -> Any:
    """A plan: itself, or the file it is in; with how it is run, where that was saved, too."""
    if given is None or isinstance(given, (rekindle.Plan, Saved)):
        return given
    if isinstance(given, (str, os.PathLike)):
        return read_plan(given)
    raise ArgumentError(f"a plan or a path was expected, found {type(given).__name__}", argument="plan")


def read_plan(path: Any) -> Any:
    """What is in a file: a plan, or one with how it is run."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and str(found.get("format", "")).startswith("rekindle.torch-plan"):
        return Saved.from_json(text)
    return rekindle.Plan.load(path)


def _numbered(recipes: _Recipes) -> Tuple[List[List[List[str]]], Dict[int, int]]:
    """Each recipe once, and which is whose: stages of a kind have the same."""
    found: List[List[List[str]]] = []
    numbers: Dict[int, int] = {}
    for number, of_level in recipes.items():
        (recipe,) = of_level.values()
        steps = [[name_of_function(function), step] for function, step in recipe.steps]
        if steps not in found:
            found.append(steps)
        numbers[number] = found.index(steps)
    return found, numbers


def _read_keepsakes(found: Optional[Dict[str, Any]]) -> Tuple[Optional[Arrangement], _Recipes]:
    if found is None:
        return None, {}
    made = Arrangement()
    made.levels = {int(number): str(level) for number, level in found["levels"].items()}
    made.releases = {int(number): int(stage) for number, stage in found["released_at"].items()}
    made.fetches = {int(stage): [int(each) for each in numbers] for stage, numbers in found["fetched_at"].items()}
    made.late_bytes = int(found["late_bytes"])
    read = [Recipe([(function_named(name), _step(step)) for name, step in steps]) for steps in found["recipes"]]
    recipes = {int(number): {made.levels[int(number)]: read[index]} for number, index in found["recipe_of"].items()}
    return made, recipes


def _step(word: str) -> str:
    if word not in (RUN, SKIP, KEEP):
        raise ValueError(f"`{word}` is none of {RUN}, {SKIP} and {KEEP}")
    return word


#: Where PyTorch's mode for functions finds what blocks call.
HOMES = (
    *("torch.Tensor", "torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft"),
    *("torch._C._nn", "torch._C"),
)


def name_of_function(function: Any) -> str:
    """A name under which :func:`function_named` finds the same."""
    name = str(getattr(function, "__name__", ""))
    if name in ("__get__", "__set__"):
        # An attribute of a tensor, such as its shape.
        owner = getattr(function, "__self__", None)
        name = f"{getattr(owner, '__name__', '')}.{name}"
    for home in HOMES:
        try:
            if function_named(f"{home}.{name}") == function:
                return f"{home}.{name}"
        except OtherModel:
            continue
    raise NotSaved(f"a block calls `{getattr(function, '__name__', function)}`, which has no name that a file could say")


def function_named(name: str) -> Any:
    first, *rest = name.split(".")
    found: Any = torch if first == "torch" else None
    for part in rest:
        found = getattr(found, part, None)
    if found is None:
        raise OtherModel(f"its blocks call `{name}`, which PyTorch {torch.__version__} has not")
    return found
