"""What is installed: its tags, its files, and what it does where there is no PyTorch."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import rekindle


def run(program, *arguments):
    return subprocess.run(
        [sys.executable, *arguments, "-c", program], capture_output=True, text=True, check=False
    )


def test_the_version_is_one(root):
    assert rekindle.__version__ == importlib.metadata.version("rekindle")
    cargo = (root / "python/Cargo.toml").read_text()
    assert f'version = "{rekindle.__version__}"' in cargo


def test_the_wheel_is_for_every_python_from_3_9():
    wheel = importlib.metadata.distribution("rekindle").read_text("WHEEL")
    tags = [line.split(": ")[1] for line in wheel.splitlines() if line.startswith("Tag: ")]
    assert tags and all(tag.startswith("cp39-abi3-") for tag in tags)


def test_types_come_with_it():
    folder = Path(rekindle.__file__).parent
    for name in ["py.typed", "_core.pyi", "errors.py"]:
        assert (folder / name).is_file(), name


def test_the_licences_come_with_it(root):
    files = importlib.metadata.distribution("rekindle").files
    for name in ["LICENSE-MIT", "LICENSE-APACHE"]:
        found = [file for file in files if file.name == name]
        assert [file.read_text() for file in found] == [(root / name).read_text()], name


def test_everything_public_is_there():
    for name in rekindle.__all__:
        assert hasattr(rekindle, name), name
    assert sorted(rekindle.__all__) == rekindle.__all__
    for name in rekindle.__all__:
        value = getattr(rekindle, name)
        if isinstance(value, type) and not issubclass(value, Exception):
            assert value.__module__ == "rekindle", name


#: Makes `import torch` fail as it does where there is none.
WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def test_planning_needs_no_pytorch():
    ran = run(WITHOUT_TORCH + "import rekindle; print(rekindle.parse_bytes('1KiB'), 'torch' in sys.modules)")
    assert ran.stdout == "1024 False\n", ran.stderr


def test_the_engine_says_that_it_needs_pytorch():
    ran = run(WITHOUT_TORCH + "import rekindle.torch")
    last = ran.stderr.strip().splitlines()[-1]
    assert ran.returncode == 1
    assert last.startswith("ImportError: ") or last.startswith("ModuleNotFoundError: "), ran.stderr
    assert "PyTorch" in ran.stderr and "pip install" in ran.stderr


def test_importing_is_quick():
    ran = run("import time; start = time.monotonic(); import rekindle; print(time.monotonic() - start)")
    assert float(ran.stdout) < 2, ran.stderr


@pytest.mark.parametrize("name", ["RekindleError", "ProfileError", "BudgetTooSmall"])
def test_errors_are_found_where_people_look(name):
    assert getattr(rekindle, name) is getattr(rekindle.errors, name)
    assert issubclass(getattr(rekindle, name), rekindle.RekindleError)
