"""Gradient checkpointing to a budget in bytes: the cheapest plan, proven, and run.

One line of data: a :class:`Profile` says what a model's stages take, :func:`plan` finds the fastest :class:`Plan` for a budget,
and :func:`simulate` judges it. ``rekindle.torch`` measures and runs PyTorch models; nothing here needs PyTorch.

>>> import rekindle
>>> blocks = [rekindle.StageProfile(f"block.{i}", "1MiB", "32MiB", 1_000_000, 2_000_000) for i in range(24)]
>>> profile = rekindle.Profile("gpt", "cpu", "1MiB", blocks)
>>> plan = rekindle.plan(profile, budget="400MiB")
>>> rekindle.format_bytes(plan.predicted.peak_bytes)
'398.0 MiB'
"""

from . import errors
from ._core import (
    Codec,
    Moment,
    Plan,
    Predicted,
    Profile,
    Simulation,
    StageProfile,
    TapeOption,
    Tier,
    __version__,
    format_bytes,
    parse_bytes,
    plan,
    simulate,
    smallest_budget,
    solvers,
)
from .errors import (
    ArgumentError,
    BudgetTooSmall,
    EstimateError,
    IllegalPlan,
    OtherModel,
    OverBudget,
    PlanError,
    PolicyError,
    ProfileError,
    RekindleError,
    SizeError,
    SolveError,
    TooFewSlots,
    UnknownName,
    WrongType,
)

__all__ = [
    "ArgumentError",
    "BudgetTooSmall",
    "Codec",
    "EstimateError",
    "IllegalPlan",
    "Moment",
    "OtherModel",
    "OverBudget",
    "Plan",
    "PlanError",
    "PolicyError",
    "Predicted",
    "Profile",
    "ProfileError",
    "RekindleError",
    "Simulation",
    "SizeError",
    "SolveError",
    "StageProfile",
    "TapeOption",
    "Tier",
    "TooFewSlots",
    "UnknownName",
    "WrongType",
    "__version__",
    "errors",
    "format_bytes",
    "parse_bytes",
    "plan",
    "simulate",
    "smallest_budget",
    "solvers",
]
