"""What a region does, for people."""

from __future__ import annotations

import html
from typing import Any, Dict, List

import rekindle


class Report:
    """A plan in words: what is kept, what is run again, and what that is predicted to take.

    Attributes
    ----------
    predicted_peak_bytes : int
        Of the whole step when the budget is for one, else of the region's activations.
    predicted_step_ns : int
        Of the same.
    base_bytes : int
        What is there before a step begins; 0 when the budget is for the region alone.
    """

    def __init__(self, plan: Any, stages: List[str], known: Dict[str, Any]):
        self.plan, self.stages, self.known = plan, stages, known
        self.base_bytes: int = known.get("base_bytes", 0)
        self.whole_step: bool = known.get("whole_step", False)
        self.measured: bool = "sized" in known or plan.predicted.peak_bytes > 0
        # Where everything is kept it was tried.
        predicted = self.base_bytes + plan.predicted.peak_bytes
        self.predicted_peak_bytes: int = known.get("measured_peak_bytes", predicted)
        self.predicted_step_ns: int = plan.predicted.step_ns

    def ways(self) -> List[str]:
        """Of each stage: kept (and under which option), run again, and where its input waits."""
        shift = 1 if self.whole_step else 0
        found: Dict[int, List[str]] = {number: [] for number in range(1, len(self.stages) + 1)}
        turned = False
        for action in self.plan.actions:
            word, subject, *rest = action.split()
            if subject.startswith("x"):
                if word in ("offload", "compress"):
                    number = int(subject[1:]) - shift + 1
                    if number in found:
                        found[number].append(f"input to {rest[0]}")
                continue
            number = int(subject) - shift
            turned = turned or word == "backward"
            if word == "tape" and number in found:
                way = f" ({rest[0]})" if rest else ""
                found[number].append(("run again" if turned else "tape kept") + way)
        for number, level in self.known.get("levels", {}).items():
            if any(way.startswith("run again") for way in found[number]):
                found[number].append(f"{level} to host")
        return [", ".join(found[number]) or "run again" for number in found]

    def __repr__(self) -> str:
        what = "the step" if self.whole_step else "the region"
        peak = rekindle.format_bytes(self.predicted_peak_bytes)
        lines = [f"{self.plan.solver} ({self.plan.status}): {what} takes {peak} at its peak, as predicted"]
        if not self.measured:
            lines = [f"{self.plan.solver}: nothing was measured, so nothing is predicted"]
        elif self.whole_step:
            base = rekindle.format_bytes(self.base_bytes)
            lines.append(f"{base} of it are there before the step begins; the peak is of memory that is allocated, not reserved")
        if self.known.get("sized") == "saved tensors":
            lines.append("tapes are what autograd saves; workspace is not known on this device and not counted")
        ways = self.ways()
        start = 0
        for end in range(1, len(ways) + 1):
            if end == len(ways) or ways[end] != ways[start]:
                names = self.stages[start] if end - start == 1 else f"{self.stages[start]} .. {self.stages[end - 1]}"
                lines.append(f"  {names}: {ways[start]}")
                start = end
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        picture = getattr(self.plan, "_repr_html_", None)
        return f"<pre>{html.escape(repr(self))}</pre>" + (picture() if picture is not None else "")
