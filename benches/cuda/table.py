"""The rows of `rekindle bench --device cuda --json`, with what nvidia-smi saw while the steps of each ran that were looked at."""

import json
import sys
from datetime import datetime, timezone
from statistics import median

MIB = 1 << 20


def seen(path):
    """Milliseconds since 1970 and MiB of the card in use, for each line of nvidia-smi."""
    for line in open(path, encoding="utf-8"):
        try:
            when, used = line.strip().split(", ")
            when = datetime.strptime(when, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=timezone.utc)
            yield when.timestamp() * 1000, int(used)
        except ValueError:
            # The last line may be cut off.
            continue


def main(bench_path, smi_path):
    bench = json.load(open(bench_path, encoding="utf-8"))
    samples = list(seen(smi_path))
    print(bench["model"])
    print(f"{bench['rounds']} rounds; planning took {bench['planning_ns'] / 1e9:.1f} s\n")
    print("| strategy | step | overhead | budget | predicted | pool in use | reserved | nvidia-smi | gradients |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in bench["rows"]:
        inside = [
            used
            for when, used in samples
            for pool in row["pool"]
            if pool["began_unix_ms"] <= when <= pool["ended_unix_ms"]
        ]
        mib = lambda key: f"{row[key] / MIB:,.0f} MiB" if row.get(key) else ""
        cells = [
            row["strategy"],
            f"{row['step_ns'] / 1e6:.1f} ms",
            f"{row['overhead'] * 100:+.1f}%",
            mib("budget_bytes"),
            mib("predicted_peak_bytes"),
            mib("peak_bytes"),
            f"{median(pool['reserved_bytes'] for pool in row['pool']) / MIB:,.0f} MiB",
            f"{max(inside):,} MiB ({len(inside)} looks)" if inside else "not seen",
            "identical" if row["identical"] else f"off by {row['relative_error']:.2e}",
        ]
        print("| " + " | ".join(cells) + " |")


main(*sys.argv[1:])
