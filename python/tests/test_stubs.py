"""The type stubs say what is there, and a program that uses them checks."""

import importlib.util
import subprocess
import sys
import textwrap

import pytest

needs_mypy = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")


@needs_mypy
def test_the_stubs_are_those_of_the_module(tmp_path):
    checked = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "rekindle._core"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "no issues found" in checked.stdout


def type_checked(tmp_path, program):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(program))
    arguments = ["--strict", "--cache-dir", str(tmp_path / "cache"), str(path)]
    return subprocess.run([sys.executable, "-m", "mypy", *arguments], capture_output=True, text=True, cwd=tmp_path, check=False)


@needs_mypy
def test_a_right_program_checks_and_a_wrong_one_does_not(tmp_path):
    right = """
        import rekindle

        stage = rekindle.StageProfile("a", "1MiB", 2**25, options=[rekindle.TapeOption("light", 2**22, 1, 2)])
        profile = rekindle.Profile("m", "cpu", 1, [stage])
        plan: rekindle.Plan = rekindle.plan(profile, budget="40%", solver="optimal")
        peak: int = plan.predicted.peak_bytes
        names: list[str] = [stage.name for stage in profile]
        actions: list[str] = plan[:2]
        try:
            rekindle.simulate(profile, ["tape 1"])
        except rekindle.BudgetTooSmall as error:
            smallest: int = error.smallest_bytes
    """
    checked = type_checked(tmp_path, right)
    assert checked.returncode == 0, checked.stdout
    wrong = """
        import rekindle

        rekindle.Profile("m", "cpu", 1, ["stage"])
        rekindle.plan("profile").peek
        rekindle.estimate(precision="fp16")
    """
    checked = type_checked(tmp_path, wrong)
    assert checked.stdout.count("error:") == 4, checked.stdout
