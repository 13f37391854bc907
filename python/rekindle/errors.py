"""What can go wrong, as exceptions that carry their parts.

Every error says what was found and what was expected, in the words of the Rust crates and the ``rekindle`` command, and has a
``hint`` where there is something to do about it. Programs read the attributes and need not read the words::

    RekindleError
    ├── ArgumentError (ValueError)    a value that cannot be used
    │   ├── SizeError                 text or a number that is no size
    │   ├── UnknownName               a solver, model or setting that nobody knows
    │   └── EstimateError             numbers of a model that do not go together
    ├── WrongType (TypeError)         a value of a type that cannot be meant
    ├── ProfileError (ValueError)     a profile that cannot be read or planned
    ├── GraphError (ValueError)       a graph that cannot be read or planned
    ├── PlanError                     a plan that cannot be read, made or judged
    │   ├── IllegalPlan               an action that cannot run
    │   ├── OtherModel                a plan for another profile
    │   ├── OverBudget                a plan that takes more than its budget
    │   ├── PolicyError               a policy that gives no plan
    │   └── SolveError                a solver that has no plan
    │       ├── BudgetTooSmall        no plan fits
    │       └── TooFewSlots           the solver counts slots, and needs more
    ├── RunError                      a step that cannot be run or measured
    └── PlaceError                    a place outside the device that cannot be used

Examples
--------
>>> import rekindle
>>> try:
...     rekindle.parse_bytes("64 parsecs")
... except rekindle.SizeError as error:
...     print(error.found)
64 parsecs
"""

from typing import Any, List, Optional


class RekindleError(Exception):
    """The base of everything that rekindle raises.

    Attributes
    ----------
    message : str
        What was found and what was expected.
    hint : str or None
        What to do about it.
    """

    hint: Optional[str]

    def __init__(self, message: str = "", *, hint: Optional[str] = None, **parts: Any) -> None:
        super().__init__(message)
        self.hint = hint
        for name, part in parts.items():
            setattr(self, name, part)

    @property
    def message(self) -> str:
        """What was found and what was expected, without the hint."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class ArgumentError(RekindleError, ValueError):
    """A value that cannot be used.

    Attributes
    ----------
    argument : str or None
        Which argument.
    found : str or None
        What was found, as text.
    """

    argument: Optional[str] = None
    found: Optional[str] = None


class SizeError(ArgumentError):
    """Text or a number that is no size, such as ``64MiB``, ``1.5 GiB``, ``2GB`` or ``4096`` are."""


class UnknownName(ArgumentError):
    """A name that nobody knows.

    Attributes
    ----------
    found : str
        The name found.
    nearest : str or None
        The name that was probably meant.
    known : list of str
        The names there are.
    """

    nearest: Optional[str] = None
    known: List[str] = []


class EstimateError(ArgumentError):
    """Numbers of a model that do not go together."""


class WrongType(RekindleError, TypeError):
    """A value of a type that cannot be meant.

    Attributes
    ----------
    argument : str
        Which argument.
    found : str
        The type that was found.
    """

    argument: Optional[str] = None
    found: Optional[str] = None


class ProfileError(RekindleError, ValueError):
    """A profile that cannot be read, or not be planned.

    Attributes
    ----------
    kind : str
        What is wrong: ``truncated``, ``invalid`` or ``version`` for text; ``no stages``, ``unnamed``,
        ``tape without output``, ``passed too much``, ``saved too much``, ``named twice``, ``still`` or ``too large`` for what
        it says.
    stage : int or None
        Which stage, from 1.
    name : str or None
        Its name, or the name that is wrong.
    line, column : int or None
        Where a text ends that was cut off.
    """

    kind: str = "invalid"
    stage: Optional[int] = None
    name: Optional[str] = None
    line: Optional[int] = None
    column: Optional[int] = None


class GraphError(RekindleError, ValueError):
    """A graph that cannot be read or planned.

    Attributes
    ----------
    kind : str
        Which rule it breaks, such as ``"cycle"``, ``"unknown node"`` or ``"truncated"``.
    name : str or None
        The node, where it is one.
    names : list of str
        The nodes of a cycle, or the two of an edge.
    line, column : int or None
        Where text that is cut off ends.
    """

    kind: Optional[str] = None
    name: Optional[str] = None
    names: List[str] = []
    line: Optional[int] = None
    column: Optional[int] = None


class PlanError(RekindleError):
    """A plan that cannot be read, made or judged.

    Attributes
    ----------
    kind : str or None
        For a text: ``truncated``, ``invalid`` or ``version``.
    line, column : int or None
        Where a text ends that was cut off.
    """

    kind: Optional[str] = None
    line: Optional[int] = None
    column: Optional[int] = None


class IllegalPlan(PlanError):
    """A plan with an action that cannot run.

    Attributes
    ----------
    action_index : int
        The index of the action, from 0; the number of actions when the plan ends wrongly.
    action : str or None
        The action, or ``None`` when the plan ends wrongly.
    reason : str
        What is wrong with it.
    """

    action_index: int
    action: Optional[str]
    reason: str


class OtherModel(PlanError):
    """A plan that was made for another model, other shapes or another device.

    Attributes
    ----------
    found : str
        The plan's fingerprint.
    expected : str
        The profile's fingerprint.
    """

    found: str
    expected: str


class OverBudget(PlanError):
    """A plan that takes more than its budget.

    Attributes
    ----------
    solver : str
        Who made the plan.
    peak_bytes, budget_bytes : int
        What it takes, and what it may take.
    """

    solver: str
    peak_bytes: int
    budget_bytes: int


class PolicyError(PlanError):
    """A policy that cannot be read, or gives no plan for the profile."""


class SolveError(PlanError):
    """A solver that has no plan.

    Attributes
    ----------
    solver : str
        The solver.
    kind : str or None
        Why: ``nothing to meet``, ``pinned``, ``no tier`` or ``too long``.
    """

    solver: str = ""


class BudgetTooSmall(SolveError):
    """No plan fits the budget.

    Attributes
    ----------
    budget_bytes : int
        The budget, less the margin.
    smallest_bytes : int
        The smallest budget there is a plan for, with the margin on top.
    """

    budget_bytes: int
    smallest_bytes: int


class TooFewSlots(SolveError):
    """The solver counts slots, and needs more of them.

    Attributes
    ----------
    slots, least : int
        The slots it was given, and the fewest it can work with.
    stages : int
        How many stages the chain has.
    """

    slots: int
    least: int
    stages: int


class RunError(RekindleError):
    """A step that cannot be run, or a model that cannot be measured."""


class PlaceError(RekindleError):
    """A place outside the device, such as host memory or a file, that cannot be used."""
