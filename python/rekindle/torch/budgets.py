"""Budgets and profiles as people may give them: objects, files or text."""

from __future__ import annotations

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


def profile_of(given: Any) -> Optional[rekindle.Profile]:
    """A profile: itself, or the file it is in."""
    if given is None or isinstance(given, rekindle.Profile):
        return given
    if isinstance(given, (str, os.PathLike)):
        return rekindle.Profile.load(given)
    raise ArgumentError(f"a profile or a path was expected, found {type(given).__name__}", argument="profile")
