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
