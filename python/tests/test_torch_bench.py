"""The script for a GPU runs on a CPU with a small model, and survives a way that fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

SCRIPT = Path(__file__).parents[2] / "benches" / "gpu" / "run.py"


def run(out: Path, *more: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(SCRIPT), "--tiny", "--device", "cpu", "--threads", "1", "--out", str(out), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=dict(os.environ))


@pytest.mark.parametrize("model", ["tiny", "tiny-llama"])
def test_every_way_is_measured(tmp_path: Path, model: str) -> None:
    done = run(tmp_path, "--model", model, "--points", "2", "--ways", "plain,per-block,ours,ours-host")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["way"].split("@")[0] for row in rows] == ["plain", "per-block", "ours", "ours", "ours-host"]
    assert not [row for row in rows if "failed" in row], rows
    assert [row["gradients"] for row in rows] == ["reference; a second run: equal"] + ["equal"] * 4
    assert (tmp_path / f"{model}-32x4.svg").read_text().startswith("<svg")
    table = (tmp_path / f"{model}-32x4.md").read_text()
    assert "| plain |" in table and "| ours@" in table


def test_a_way_that_fails_is_a_row(tmp_path: Path) -> None:
    done = run(tmp_path, "--budgets", "0.001,8", "--ways", "plain,ours")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert "BudgetTooSmall" in rows[1]["failed"] and "failed" not in rows[2]


def test_the_picture_has_every_point() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from plot import plot
        from table import best_of_theirs, table
    finally:
        sys.path.pop(0)
    config = {"model": "m", "batch": 1, "length": 2, "dtype": "d", "device": "<g>", "layers": 3, "torch": "2"}

    def row(way: str, peak: int, time: float, budget: int = 0) -> dict:
        return {
            "way": way,
            "peak_bytes": peak << 20,
            "step_ms": time,
            "budget_bytes": budget << 20 or None,
            "predicted_bytes": peak << 20 if budget else None,
            "gradients": "equal",
            "note": "",
        }

    rows = [row("plain", 900, 10), row("per-block", 300, 14), row("ours@500", 480, 12, 500), row("ours@900", 880, 10, 900)]
    rows.append({"way": "selective", "failed": "OutOfMemoryError", "budget_bytes": None})
    picture = plot(config, rows)
    assert picture.count("<circle") == 4 + 1 and "&lt;g&gt;" in picture
    assert best_of_theirs(rows, 500 << 20)["way"] == "per-block"
    text = table(config, rows)
    assert "-14.3% of per-block" in text and "+0.0% of plain" in text and "OutOfMemoryError" in text
    rows[2]["peak_bytes"] = 501 << 20
    assert "OVER THE BUDGET" in table(config, rows)


def test_what_host_memory_can_save_at_most() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from bound import at, bound, hull, words
        from table import table
    finally:
        sys.path.pop(0)
    # The point in the middle lies below the line between its neighbours, and the last one saves nothing more.
    curve = hull([(10, 5), (20, 6), (30, 9), (40, 9)])
    assert curve == [(0.0, 0.0), (10, 5), (30, 9)]
    assert [at(curve, size) for size in (0, 5, 10, 20, 30, 99)] == [0, 2.5, 5, 7, 9, 9]
    per_block = {"way": "per-block", "peak_bytes": 10**9, "step_ms": 100.0, "budget_bytes": None, "predicted_bytes": None, "gradients": "="}
    tier = {"write_bytes_per_second": 10**10}
    # Four blocks of 2 ms: 6 ms for the link at 10 bytes a nanosecond, and 4 MB more while the loss is computed.
    known = {
        "is_ahead": True,
        "tiers": [tier],
        "beyond_ns": 10**6,
        "late_bytes": 4 * 10**6,
        "run_again_ns": [3 * 10**6] * 4,
        "forward_ns": [2 * 10**6] * 4,
        "kept": [{"attention": [16 * 10**6, 2 * 10**6, 0], "products": [32 * 10**6, 10**6, 500_000]}] * 4,
    }
    loss = {"tape_bytes": 10**6, "backward_extra_bytes": 759 * 10**6}
    profile = {"stages": [{"tape_bytes": 10**8}, *[{"output_bytes": 10**7}] * 4, loss]}
    ours = {**per_block, "way": "ours-host@953", "budget_bytes": 10**9, "predicted_ms": 50.0, "step_ms": 97.0, "known": known, "note": ""}
    ours.update(base_bytes=10**8, profile=profile)
    found = bound({**ours, "predicted_ms": 97.0}, per_block)
    assert found == {"bytes": 64 * 10**6, "saved_ms": 4.0, "ms": 96.0}
    # A device that got slower saves more, and half of the room saves half as much.
    assert abs(bound(ours, per_block)["saved_ms"] - 4.0 * 97 / 50) < 1e-9
    less = bound({**ours, "predicted_ms": 97.0, "budget_bytes": 10**9 - 32 * 10**6}, per_block)
    assert (less["bytes"], less["saved_ms"]) == (32 * 10**6, 2.0)
    # Only so much passes until the model returns, whatever room there is.
    hasty = {**known, "late_bytes": 10**9}
    assert bound({**ours, "predicted_ms": 97.0, "known": hasty}, per_block)["bytes"] == 70 * 10**6
    # Where the CPU is the limit, or something else than the loss sets the peak, it says nothing; nor with more room than per-block takes.
    assert bound({**ours, "known": {**known, "is_ahead": False}}, per_block) is None
    assert bound({**ours, "base_bytes": 0}, per_block) is None
    # Nor where a block's input is cheaper to do without than what would be there instead.
    cheap = {**known, "run_again_ns": [4 * 10**6] * 4}
    assert bound({**ours, "known": cheap}, per_block) is None
    assert bound({**ours, "budget_bytes": 10**9 + 1}, per_block) is None
    assert words([ours]) == [] and len(words([per_block, ours])) == 1
    config = {"model": "m", "batch": 1, "length": 2, "dtype": "d", "device": "g", "layers": 3, "torch": "2"}
    assert "no such plan is faster than 92.2 ms (-7.8% of per-block)" in table(config, [per_block, ours])


def test_steps_are_compared_in_turns() -> None:
    command = [sys.executable, str(SCRIPT.with_name("overhead.py")), "--device", "cpu", "--model", "tiny", "--length", "8", "--batch", "1"]
    done = subprocess.run([*command, "--steps", "1", "--turns", "1"], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["plain:", "per-block:", "every-1:", "store-all:"]
