"""The other side of the comparison counts memory as it says it does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PEER = Path(__file__).parents[2] / "benches" / "peers" / "gpt.py"


@pytest.mark.skipif(not PEER.exists(), reason="the benches are not beside the tests")
def test_the_peer_counts_cases_made_by_hand() -> None:
    ended = subprocess.run([sys.executable, str(PEER), "--self-test"], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ": ok" in ended.stdout and "WRONG" not in ended.stdout, ended.stdout
