"""Long solves: other threads go on, and Ctrl-C is answered."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import rekindle


def long_chain(count=700):
    """A chain whose stages are all different, which takes seconds."""
    stages = [
        rekindle.StageProfile(f"s{index}", 1000 + index * 7919 % 997, 9000 + index * 104729 % 8999, 100 + index * 31 % 97, 200)
        for index in range(count)
    ]
    return rekindle.Profile("long", "none", 1000, stages)


def test_other_threads_run_while_a_plan_is_looked_for():
    profile = long_chain()
    counted = 0
    found = []
    solving = threading.Thread(
        target=lambda: found.append(rekindle.plan(profile, "20%", gap=0, time_limit=1.5)), daemon=True
    )
    start = time.monotonic()
    solving.start()
    while solving.is_alive():
        counted += 1
        time.sleep(0.01)
    took = time.monotonic() - start
    assert found and found[0].predicted.peak_bytes <= found[0].budget_bytes
    # A thread that was kept waiting would have counted to one or two.
    assert took > 0.3, "the chain is too easy to show anything"
    assert counted > took / 0.01 / 4


def test_plans_of_several_threads_are_the_plans_of_one():
    profiles = [long_chain(40 + index) for index in range(6)]
    alone = [rekindle.plan(profile, "30%") for profile in profiles]
    together = [None] * len(profiles)

    def solve(index):
        together[index] = rekindle.plan(profiles[index], "30%")

    threads = [threading.Thread(target=solve, args=(index,)) for index in range(len(profiles))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("call", ["rekindle.plan(p, '20%', gap=0, time_limit=60)", "rekindle.frontier(p, time_limit=60)"])
def test_ctrl_c_is_answered_at_once(call):
    program = textwrap.dedent(
        f"""
        import rekindle, signal, time
        # What is started in the background ignores Ctrl-C, and hands that on.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stages = [
            rekindle.StageProfile(f"s{{i}}", 1000 + i * 7919 % 997, 9000 + i * 104729 % 8999, 100 + i * 31 % 97, 200)
            for i in range(1900)
        ]
        p = rekindle.Profile("long", "none", 1000, stages)
        print("ready", flush=True)
        start = time.monotonic()
        try:
            {call}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        else:
            print("finished after", time.monotonic() - start, flush=True)
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        sent = time.monotonic()
        assert child.stdout.readline() == "interrupted\n"
        assert time.monotonic() - sent < 5
    finally:
        child.kill()
        child.wait()
