"""The results as a Markdown table."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from bound import words

MIB = 1 << 20


def _mebibytes(size: Optional[int]) -> str:
    return "" if size is None else f"{size / MIB:,.0f}"


def best_of_theirs(rows: List[Dict[str, Any]], budget: int) -> Optional[Dict[str, Any]]:
    """The fastest of PyTorch's own ways that fit a budget."""
    fitting = [
        row
        for row in rows
        if not row["way"].startswith("ours") and "failed" not in row and (row["peak_bytes"] or 0) <= budget
    ]
    return min(fitting, key=lambda row: row["step_ms"], default=None)


def table(config: Dict[str, Any], rows: List[Dict[str, Any]]) -> str:
    title = (
        f"{config['model']}, {config['layers']} blocks, batch {config['batch']}, T={config['length']}, {config['dtype']}, "
        f"{config['device']}, PyTorch {config['torch']}"
    )
    lines = [
        f"### {title}",
        "",
        "| way | step ms | peak MiB | budget MiB | predicted MiB | off by | against the best of PyTorch's that fits | what it does |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['way']} | | | {_mebibytes(row['budget_bytes'])} | | | {row['failed']} | |")
            continue
        budget, predicted, peak = row["budget_bytes"], row["predicted_bytes"], row["peak_bytes"]
        off = f"{(predicted - peak) / peak:+.1%}" if predicted and peak else ""
        against = ""
        if budget and peak is not None:
            best = best_of_theirs(rows, budget)
            if best is not None:
                against = f"{row['step_ms'] / best['step_ms'] - 1:+.1%} of {best['way']}"
        if budget and peak and peak > budget:
            against = "OVER THE BUDGET; " + against
        lines.append(
            f"| {row['way']} | {row['step_ms']:.1f} | {_mebibytes(peak)} | {_mebibytes(budget)} | {_mebibytes(predicted)} "
            f"| {off} | {against} | {row.get('note', '')} |"
        )
    for line in words(rows):
        lines += ["", line]
    bases = [row["base_bytes"] for row in rows if row.get("base_bytes")]
    if bases:
        lines += ["", f"Before a step begins {_mebibytes(bases[0])} MiB are there: parameters, the optimizer's state, the batch."]
    found = [f"{row['way']} {row['gradients']}" for row in rows if "failed" not in row]
    lines += ["", "Gradients against plain's: " + "; ".join(found) + "."]
    return "\n".join(lines) + "\n"
