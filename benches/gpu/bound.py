"""What results in host memory can save at most, whoever plans it.

When the loss goes back, memory is full: of what second runs of the blocks could use, the device has their inputs and nothing else (to do
without one costs more than what could be there instead saves, or nothing is said here).
The rest has left over the link by then. That begins when the first block has run, and while the loss is computed no more can be
on its way than the loss leaves free. So many bytes save no more than the best results by time per byte do, and what they
save was measured.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple


def hull(points: Sequence[Tuple[float, float]]) -> List[Tuple[float, float]]:
    """The least concave curve from (0, 0) over all points: any mixture of ways lies below it."""
    found: List[Tuple[float, float]] = [(0.0, 0.0)]
    for size, saved in sorted(points):
        if saved <= found[-1][1]:
            continue
        while len(found) > 1 and _slope(found[-2], found[-1]) <= _slope(found[-2], (size, saved)):
            found.pop()
        found.append((size, saved))
    return found


def _slope(one: Tuple[float, float], other: Tuple[float, float]) -> float:
    return (other[1] - one[1]) / max(other[0] - one[0], 1e-9)


def at(curve: Sequence[Tuple[float, float]], size: float) -> float:
    """The curve's height; it ends level."""
    for one, other in zip(curve, curve[1:]):
        if size <= other[0]:
            return one[1] + (size - one[0]) * _slope(one, other)
    return curve[-1][1]


def most_bytes(row: Dict[str, Any], room: int) -> float:
    """What can be elsewhere, or in ``room`` more than the inputs of blocks take, when the loss goes back."""
    known = row["known"]
    write = known["tiers"][0]["write_bytes_per_second"]
    runs = known["forward_ns"]
    region = sum(runs) - runs[0]
    leaves = min(write * region / 1e9 + known["late_bytes"], write * (region + known["beyond_ns"]) / 1e9)
    return max(leaves + room, 0.0)


#: The part of per-block's peak that the loss has to take to be what sets it.
NEARLY = 0.99


def when_the_loss_goes_back(row: Dict[str, Any]) -> int:
    """What there is then beside every block's input."""
    before, *stages, after = row["profile"]["stages"]
    loss = after["tape_bytes"] + after.get("backward_extra_bytes", 0) + after.get("parameter_gradient_bytes", 0)
    return int(row["base_bytes"] + before["tape_bytes"] + sum(stage["output_bytes"] for stage in stages) + loss)


def an_input(row: Dict[str, Any]) -> float:
    """What it costs at least to do without a block's input, for each of its bytes: the part of a second run that nobody reads."""
    known, stages = row["known"], row["profile"]["stages"][1:-1]
    runs = zip(known["forward_ns"], known["run_again_ns"], stages)
    return min((2 * forward - again) / max(stage["output_bytes"], 1) for forward, again, stage in runs)


def bound(row: Dict[str, Any], per_block: Dict[str, Any]) -> Optional[Dict[str, float]]:
    """For a way with host memory at per-block's own peak or below: the least time in milliseconds, and the bytes it stands on."""
    known = row.get("known")
    if "failed" in row or not known or not known.get("tiers") or not any(known.get("kept", ())):
        return None
    if not row.get("budget_bytes") or per_block["peak_bytes"] is None:
        return None
    room = row["budget_bytes"] - per_block["peak_bytes"]
    # Where the CPU is the limit, times are the CPU's and say nothing of the link; and where it is not the loss that takes most, the
    # device has room for more when it goes back.
    if room > 0 or not known.get("is_ahead") or when_the_loss_goes_back(row) < NEARLY * per_block["peak_bytes"]:
        return None
    stages = len(known["run_again_ns"])
    size = most_bytes(row, room) / stages
    saved = next_byte = 0.0
    for again, levels in zip(known["run_again_ns"], known["kept"]):
        curve = hull([(float(size), float(again - first - second)) for size, first, second in levels.values()])
        saved = max(saved, at(curve, size))
        next_byte = max(next_byte, at(curve, size + 1) - at(curve, size))
    if next_byte > an_input(row):
        return None
    # Every stage as the one that saves most; by concavity the same bytes for each are best. A device that computes without a pause
    # is slower than it was when it was measured: so is what is saved.
    slower = max(row["step_ms"] / row["predicted_ms"], 1.0)
    saved_ms = stages * saved * slower / 1e6
    return {"bytes": size * stages, "saved_ms": saved_ms, "ms": per_block["step_ms"] - saved_ms}


def words(rows: Sequence[Dict[str, Any]]) -> List[str]:
    """A line for each way the bound is for."""
    per_block = next((row for row in rows if row["way"] == "per-block" and "failed" not in row), None)
    lines = []
    for row in rows if per_block is not None else ():
        assert per_block is not None
        found = bound(row, per_block)
        if found is not None:
            part = found["ms"] / per_block["step_ms"] - 1
            lines.append(
                f"{row['way']}: at most {found['bytes'] / 2**20:,.0f} MiB of results can wait for the loss to go back, which save at most "
                f"{found['saved_ms']:.1f} ms: no such plan is faster than {found['ms']:.1f} ms ({part:+.1%} of per-block)."
            )
    return lines
