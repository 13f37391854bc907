"""The slot solvers beside checkpoint_schedules and pyrevolve: one table of medians.

    python -m venv peers && peers/bin/pip install checkpoint_schedules==1.0.4 pyrevolve==2.2.8
    peers/bin/python benches/peers/slots.py [RUNS]

Ours come from the example program `slots` of `rekindle-plan`, built in release mode by this script (or given as
SLOTS_PROGRAM). A peer that is not installed, or takes longer than LIMIT seconds for one schedule, is left out of that
row. Peers are timed from the constructor to the last action, as we are. Forwards include taped ones; on several levels
plans of one cost may differ in them.
"""

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
LIMIT = 30
ROOT = Path(__file__).resolve().parents[2]


def ours():
    program = os.environ.get("SLOTS_PROGRAM")
    build = "cargo run --release --quiet --package rekindle-plan --example slots --".split()
    command = [program] if program else build
    output = subprocess.run([*command, "101"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return {(row["solver"], row["stages"], row["slots"]): row for row in json.loads(output)}


def exhaust(schedule):
    """Runs a schedule of checkpoint_schedules to its end; the stage forwards it has."""
    from checkpoint_schedules import EndReverse, Forward

    forwards = 0
    for action in schedule:
        if isinstance(action, Forward):
            forwards += action.n1 - action.n0
        if isinstance(action, EndReverse):
            return forwards
    return forwards


class Place:
    """All that pyrevolve's H-Revolve asks of a place for checkpoints."""

    def __init__(self, slots, cost):
        self.nckp, self.wd, self.rd = slots, cost, cost


def peers():
    """Peer by solver and name, as a function of length and slots that gives the stage forwards."""
    found = {}
    try:
        import checkpoint_schedules as cs

        found["revolve", "checkpoint_schedules"] = lambda n, s: exhaust(cs.Revolve(n, s))
        found["revolve", "checkpoint_schedules multistage"] = lambda n, s: exhaust(
            cs.MultistageCheckpointSchedule(n, s, 0))
        found["mixed", "checkpoint_schedules"] = lambda n, s: exhaust(
            cs.MixedCheckpointSchedule(n, s, storage=cs.StorageType.RAM))
        found["multi-level", "checkpoint_schedules"] = lambda n, s: exhaust(
            cs.HRevolve(n, s, 3 * s, uf=1, ub=1, wd=5, rd=5))
        found["disk-revolve", "checkpoint_schedules"] = lambda n, s: exhaust(
            cs.DiskRevolve(n, s, uf=1, ub=1, wd=5, rd=5))
    except ImportError as error:
        print(f"checkpoint_schedules is left out: {error}", file=sys.stderr)
    try:
        from pyrevolve.schedulers import Action, CRevolve, HRevolve
        from pyrevolve.schedulers.base import Architecture

        def walk(scheduler, steps):
            """Advances, and one taped forward for each step."""
            forwards = steps
            while True:
                action = scheduler.next()
                if action.type == Action.ADVANCE:
                    forwards += scheduler.capo - scheduler.old_capo
                if action.type == Action.TERMINATE:
                    return forwards

        def h_revolve(steps, slots):
            levels = Architecture([Place(slots, 0), Place(3 * slots, 5)])
            # Its number of checkpoints must be the number of steps; the levels say how many there are.
            return walk(HRevolve(steps, steps, architecture=levels), steps)

        found["revolve", "pyrevolve"] = lambda n, s: walk(CRevolve(s, n), n)
        found["multi-level", "pyrevolve"] = h_revolve
    except ImportError as error:
        print(f"pyrevolve is left out: {error}", file=sys.stderr)
    return found


def timed(solve, stages, slots):
    """The median, each run in a process of its own: a table that one run left behind would serve the next."""
    fork = multiprocessing.get_context("fork")

    def once(pipe):
        start = time.perf_counter()
        try:
            forwards = solve(stages, slots)
            pipe.send((time.perf_counter() - start, forwards))
        except Exception as error:  # noqa: BLE001 - a peer that fails is a row of the table, too
            pipe.send(error)

    seconds = []
    for _ in range(RUNS):
        here, there = fork.Pipe(duplex=False)
        process = fork.Process(target=once, args=(there,))
        process.start()
        if not here.poll(LIMIT):
            process.terminate()
            process.join()
            raise TimeoutError
        answer = here.recv()
        process.join()
        if isinstance(answer, Exception):
            raise answer
        seconds.append(answer[0])
        if seconds[-1] > LIMIT / RUNS:
            break
    return statistics.median(seconds), answer[1]


def main():
    mine, theirs, gone = ours(), peers(), set()
    print("| solver | n | slots | ours, s | peer | peer, s | peer / ours | our forwards | peer's forwards |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (solver, stages, slots), row in sorted(mine.items()):
        ours_text = f"| {solver} | {stages} | {slots} | {row['seconds']:.2e} |"
        for (what, peer), solve in theirs.items():
            if what != solver:
                continue
            if (what, peer) in gone:
                print(f"{ours_text} {peer} | > {LIMIT} | > {LIMIT / row['seconds']:.0f} | {row['forwards']} | - |")
                continue
            try:
                seconds, forwards = timed(solve, stages, slots)
            except TimeoutError:
                gone.add((what, peer))
                print(f"{ours_text} {peer} | > {LIMIT} | > {LIMIT / row['seconds']:.0f} | {row['forwards']} | - |")
                continue
            except Exception as error:  # noqa: BLE001 - a peer that fails is a row of the table, too
                print(f"{ours_text} {peer} | {type(error).__name__}: {error} | - | {row['forwards']} | - |")
                continue
            ratio = seconds / row["seconds"]
            print(f"{ours_text} {peer} | {seconds:.2e} | {ratio:.0f} | {row['forwards']} | {forwards} |")
        if not any(what == solver for what, _ in theirs):
            print(f"{ours_text} - | - | - | {row['forwards']} | - |")


if __name__ == "__main__":
    main()
