"""What several tests need: the profile of the command's own tests, and where the repository is."""

from pathlib import Path

import pytest

import rekindle


@pytest.fixture
def root() -> Path:
    """The repository."""
    return Path(__file__).resolve().parents[2]


@pytest.fixture
def four() -> rekindle.Profile:
    """The profile that the command's tests plan, so that its snapshots say what Python should find."""
    stages = [
        rekindle.StageProfile(
            f"block.{index}",
            "1MiB",
            (8 + index) * 2**20,
            1_000_000,
            2_000_000,
            backward_extra_bytes="2MiB",
        )
        for index in range(4)
    ]
    return rekindle.Profile("four", "flex", "1MiB", stages)
