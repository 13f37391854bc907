#!/usr/bin/env python3
"""Step time and peak memory of PyTorch's own ways to checkpoint, and of rekindle's at several budgets.

    python run.py --model gpt2-medium --length 1024 --batch 8 --out results

Each line of ``results/results.jsonl`` is written when its way has been measured, so that a run that is stopped loses
nothing; the table and the plot are made from all lines of a configuration. A way that fails, for want of memory or for
another reason, is a line that says so, and the next one goes on.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from models import SHAPES, build  # noqa: E402
from plot import plot  # noqa: E402
from table import table  # noqa: E402
from ways import Way, named, ours  # noqa: E402

MIB = 1 << 20

#: What `bound` needs of what is known of a region.
KNOWN = ("tiers", "beyond_ns", "late_bytes", "run_again_ns", "kept", "is_ahead")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt2-medium", choices=sorted(SHAPES))
    parser.add_argument("--layers", type=int, default=0, help="another number of blocks")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--loss-rows", type=int, default=0, help="compute the loss in parts of so many rows")
    parser.add_argument("--ways", default="plain,per-block,selective,compile,compile-parts,compile-per-block,ours,ours-compiled,ours-host")
    parser.add_argument("--parts", default="0.7,0.5,0.3,0.1", help="PyTorch's own compiled memory budgets")
    parser.add_argument("--our-parts", default="0.8,0.6,0.4,0.2,0.1,0", help="ours, as options of each stage")
    parser.add_argument("--group", type=int, default=4, help="blocks that ours compiles together")
    parser.add_argument("--budgets", default="", help="in MiB, by commas; else --points between per-block's peak and plain's")
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--host-parts", default="0.6,0.8,1", help="budgets for ours-host, as parts of per-block's peak")
    parser.add_argument("--host", type=int, default=64 << 10, help="MiB of pinned memory for ours-host")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--limit", type=float, default=150, help="seconds a way may take; its steps are cut short then")
    parser.add_argument("--total", type=float, default=0, help="seconds after which no further way is begun")
    parser.add_argument("--out", default="results")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script")
    parser.add_argument("--threads", type=int, default=0)
    parsed = parser.parse_args()
    if parsed.tiny:
        parsed.model = parsed.model if parsed.model.startswith("tiny") else "tiny"
        parsed.length, parsed.batch, parsed.steps, parsed.warm_up = 32, 4, 2, 1
    if parsed.device == "cpu":
        parsed.dtype = "float32"
    return parsed


class Bench:
    """One model with one shape of batches."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.device = options.device
        self.dtype = getattr(torch, options.dtype)
        shape = SHAPES[options.model]
        generator = torch.Generator().manual_seed(1)
        tokens = torch.randint(0, shape.vocabulary, (options.batch, options.length + 1), generator=generator)
        self.batch = (
            tokens[:, :-1].contiguous().to(self.device),
            tokens[:, 1:].contiguous().to(self.device),
        )
        self.reference: Optional[List[torch.Tensor]] = None
        self.began = time.monotonic()
        os.makedirs(options.out, exist_ok=True)
        self.path = os.path.join(options.out, "results.jsonl")
        self.config = {
            "model": options.model,
            "layers": options.layers or shape.layers,
            "length": options.length,
            "batch": options.batch,
            "dtype": options.dtype,
            "loss_rows": options.loss_rows,
            "device": torch.cuda.get_device_name() if self.device == "cuda" else self.device,
            "torch": torch.__version__,
        }
        self.rows: List[Dict[str, Any]] = []

    def over(self) -> bool:
        total = self.options.total
        return bool(total) and time.monotonic() - self.began > total

    def way(self, name: str, make: Callable[..., Way], budget: Optional[int] = None) -> Dict[str, Any]:
        """Measures one way, whatever happens."""
        row: Dict[str, Any] = {**self.config, "way": name, "budget_bytes": budget}
        start = time.monotonic()
        if self.over():
            row["failed"] = "not begun: the time for all ways is over"
        else:
            try:
                row.update(self.measure(make))
            except Exception as error:  # noqa: BLE001 - the next way goes on
                # Without the traceback, whose frames hold on to the memory of what failed.
                row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:400]
                row["traceback"] = traceback.format_exc()[-3000:]
                traceback.print_exc()
        row["seconds"] = round(time.monotonic() - start, 1)
        self.clean()
        self.rows.append(row)
        with open(self.path, "a") as file:
            file.write(json.dumps(row) + "\n")
        said = row.get("failed") or f"{row['step_ms']:.1f} ms, {self.in_mebibytes(row['peak_bytes'])}"
        print(f"{name:24} {said}  ({row['seconds']} s) {row.get('note', '')}", flush=True)
        return row

    def in_mebibytes(self, size: Optional[int]) -> str:
        return "peak not known" if size is None else f"{size / MIB:,.0f} MiB"

    def measure(self, make: Callable[..., Way]) -> Dict[str, Any]:
        options = self.options
        deadline = time.monotonic() + options.limit
        model = build(options.model, options.length, self.device, self.dtype, options.loss_rows, options.layers)
        fused = {"fused": True} if self.device == "cuda" else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused)
        way = make(model, self.batch, optimizer)
        different = self.compare(model, way)
        for _ in range(options.warm_up):
            self.step(way, optimizer)
        self.finish()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times, marks = [], []
        for _ in range(options.steps):
            start = time.perf_counter()
            if self.device == "cuda":
                mark = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                mark[0].record()
                self.step(way, optimizer)
                mark[1].record()
                marks.append(mark)
            else:
                self.step(way, optimizer)
                times.append((time.perf_counter() - start) * 1000)
            if time.monotonic() > deadline:
                break
        self.finish()
        times = times or [start.elapsed_time(end) for start, end in marks]
        peak = torch.cuda.max_memory_allocated() if self.device == "cuda" else None
        row: Dict[str, Any] = {
            "step_ms": statistics.median(times),
            "fastest_ms": min(times),
            "steps": len(times),
            "peak_bytes": peak,
            "predicted_bytes": way.predicted,
            "note": way.note,
            **different,
        }
        if way.installed is not None:
            row["base_bytes"] = way.installed.report.base_bytes
            pinned = way.installed.region.planner.places.pinned
            if pinned is not None:
                # One more step, with events around every copy and every wait.
                pinned.trace = []
                self.step(way, optimizer)
                moved, waited = pinned.transfers()
                pinned.trace = None
                row["moved_ms"], row["waited_ms"] = moved, waited
                hidden = 1 - waited / moved if moved else 1.0
                row["note"] += f"; copies {moved:.0f} ms, {hidden:.0%} of them hidden"
            row["predicted_ms"] = way.installed.report.predicted_step_ns / 1e6
            known = way.installed.region.current.known
            row["levels"] = known.get("levels")
            row["profile"] = json.loads(way.installed.profile.to_json())
            row["known"] = {name: known[name] for name in KNOWN if name in known}
            around = 1 if way.installed.report.whole_step else 0
            stages = row["profile"]["stages"]
            row["known"]["forward_ns"] = [stage["forward_ns"] for stage in stages[around : len(stages) - around]]
            row["actions"] = way.installed.plan.actions
        return row

    def step(self, way: Way, optimizer: torch.optim.Optimizer) -> None:
        loss = way.run(*self.batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def compare(self, model: torch.nn.Module, way: Way) -> Dict[str, Any]:
        """The gradients of the first step against those of plain PyTorch."""
        loss = way.run(*self.batch)
        loss.backward()
        value = float(loss.detach())
        if self.reference is None:
            self.reference = [p.grad.detach().to("cpu", copy=True) for p in model.parameters()]
            model.zero_grad(set_to_none=True)
            # How far two runs of the same code are apart on this device: some kernels add in any order.
            again = self.compare(model, way)["gradients"]
            return {"loss": value, "gradients": f"reference; a second run: {again}"}
        largest, equal = 0.0, True
        for parameter, reference in zip(model.parameters(), self.reference):
            found, expected = parameter.grad, reference.to(self.device)
            if not torch.equal(found, expected):
                equal = False
                scale = expected.float().norm().item() or 1.0
                largest = max(largest, (found.float() - expected.float()).norm().item() / scale)
        model.zero_grad(set_to_none=True)
        return {"loss": value, "gradients": "equal" if equal else f"differ by up to {largest:.1e} of their length"}

    def finish(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def clean(self) -> None:
        """Nothing of a way is left for the next one."""
        if "torch._dynamo" in sys.modules:
            sys.modules["torch._dynamo"].reset()
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def peak(rows: List[Dict[str, Any]], way: str) -> Optional[int]:
    found = [row.get("peak_bytes") for row in rows if row["way"] == way and "failed" not in row]
    return found[0] if found else None


def budgets(bench: Bench, least: str) -> List[int]:
    """Evenly between the peaks of two of PyTorch's ways, ends included."""
    options = bench.options
    if options.budgets:
        return [int(float(budget) * MIB) for budget in options.budgets.split(",")]
    low, high = peak(bench.rows, least), peak(bench.rows, "plain")
    if low is None or high is None:
        if bench.device == "cuda":
            print(f"no budgets: `plain` and `{least}` are needed for them, or --budgets", flush=True)
            return []
        # Nobody counts on a CPU; these are of the region's activations.
        low, high = 4 * MIB, 16 * MIB
    points = max(options.points, 1)
    return [int(low + (high - low) * index / max(points - 1, 1)) for index in range(points)]


def main() -> int:
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("CUDA was asked for and is not there; give --device cpu --tiny to try the script", file=sys.stderr)
        return 2
    bench = Bench(options)
    wanted = options.ways.split(",")
    parts = [float(part) for part in options.parts.split(",") if part]
    theirs = named({"parts": parts})
    for name, make in theirs.items():
        is_part = name.startswith("compile-") and name != "compile-per-block"
        if name in wanted or (is_part and "compile-parts" in wanted):
            bench.way(name, make)
    if "ours" in wanted:
        for budget in budgets(bench, "per-block"):
            bench.way(f"ours@{budget // MIB}", ours(budget), budget)
    if "ours-selective" in wanted:
        for budget in budgets(bench, "per-block"):
            bench.way(f"ours-selective@{budget // MIB}", ours(budget, ["recompute", "selective"]), budget)
    if "ours-compiled" in wanted and hasattr(torch, "compile"):
        least = "compile-per-block" if peak(bench.rows, "compile-per-block") else "per-block"
        ours_parts = ["compile"] if not options.our_parts else [float(part) for part in options.our_parts.split(",")]
        for budget in budgets(bench, least):
            bench.way(f"ours-compiled@{budget // MIB}", ours(budget, ours_parts, group=options.group), budget)
    if "ours-host" in wanted:
        host = options.host * MIB
        low = peak(bench.rows, "per-block")
        if low:
            for part in options.host_parts.split(","):
                budget = int(float(part) * low)
                bench.way(f"ours-host@{budget // MIB}", ours(budget, host=host), budget)
        elif bench.device == "cpu":
            bench.way("ours-host@4", ours(4 * MIB, host=host), 4 * MIB)
        else:
            print("no budgets for ours-host: they are parts of what `per-block` takes", flush=True)
    name = f"{options.model}-{options.length}x{options.batch}"
    text = table(bench.config, bench.rows)
    with open(os.path.join(options.out, f"{name}.md"), "w") as file:
        file.write(text)
    with open(os.path.join(options.out, f"{name}.svg"), "w") as file:
        file.write(plot(bench.config, bench.rows))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
