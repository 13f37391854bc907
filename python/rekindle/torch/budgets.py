"""Budgets, profiles and numbers as people may give them: objects, files or text."""

from __future__ import annotations

import math
import numbers
import os
from typing import Any, Optional

import rekindle
from rekindle.errors import ArgumentError


def in_bytes(budget: Any) -> Optional[int]:
    """A budget in bytes: a number of them, or text such as ``8GiB``."""
    if budget is None:
        return None
    if isinstance(budget, str):
        return int(rekindle.parse_bytes(budget))
    if isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0:
        return budget
    raise ArgumentError(f"a size such as 8589934592 or \"8GiB\" was expected, found {budget!r}", found=repr(budget))


def at_least_one(number: Any, argument: str) -> int:
    """How many there are to be of something."""
    if isinstance(number, numbers.Integral) and not isinstance(number, bool) and int(number) >= 1:
        return int(number)
    raise ArgumentError(
        f"`{argument}` is {number!r}, expected an integer of at least 1", argument=argument, found=repr(number)
    )


def margin_of(margin: Any) -> Optional[float]:
    """The part of a budget that stays free; none when nobody said."""
    if margin is None:
        return None
    if isinstance(margin, numbers.Real) and not isinstance(margin, bool):
        part = float(margin)
        if math.isfinite(part) and part >= 0:
            return part
    raise ArgumentError(
        f"`margin` is {margin!r}, expected a number of at least 0, such as 0.002", argument="margin", found=repr(margin)
    )


def profile_of(given: Any) -> Optional[rekindle.Profile]:
    """A profile: itself, or the file it is in."""
    if given is None or isinstance(given, rekindle.Profile):
        return given
    if isinstance(given, (str, os.PathLike)):
        return rekindle.Profile.load(given)
    raise ArgumentError(f"a profile or a path was expected, found {type(given).__name__}", argument="profile")
