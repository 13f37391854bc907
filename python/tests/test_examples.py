"""The examples in the documentation run, and everything public has one or at least a line."""

import doctest
import importlib.util
import inspect
import re
import sys

import pytest

import rekindle

PUBLIC = {name: getattr(rekindle, name) for name in rekindle.__all__ if name not in {"__version__", "errors"}}


def documented():
    yield "rekindle", rekindle.__doc__
    yield "rekindle.errors", rekindle.errors.__doc__
    for name, value in PUBLIC.items():
        yield name, value.__doc__
        if inspect.isclass(value):
            for member, of in vars(value).items():
                if not member.startswith("_"):
                    yield f"{name}.{member}", inspect.getdoc(of)


def run(name, text):
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    said = []
    failed, tried = doctest.DocTestRunner().run(test, out=said.append)
    assert tried > 0
    assert failed == 0, "".join(said)


@pytest.mark.parametrize("page", ["docs/python.md", "python/README.md"])
def test_the_pages_run(root, page):
    """What stands in a section stands on what was said in those before it."""
    core, _, engine = (root / page).read_text().partition("\n## PyTorch")
    text = core + engine if importlib.util.find_spec("torch") else core
    blocks = re.findall(r"^```pycon\n(.*?)^```$", text, re.M | re.S)
    assert blocks
    run(page, "\n".join(blocks))


EXAMPLES = {name: text for name, text in documented() if text and ">>>" in text}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name):
    run(name, EXAMPLES[name])


def test_everything_public_is_documented():
    # What a class only holds is documented among the attributes of the class.
    without = [name.split(".") for name, text in documented() if not text]
    assert [name for name in without if name[-1] not in (PUBLIC[name[0]].__doc__ or "")] == []
    functions = {name for name, value in PUBLIC.items() if inspect.isroutine(value)}
    assert functions <= set(EXAMPLES)
    assert len(EXAMPLES) >= 20


def test_help_shows_the_parameters():
    signature = inspect.signature(rekindle.plan)
    assert signature.parameters["solver"].default == "optimal"
    assert signature.parameters["solver"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "Parameters\n----------" in inspect.getdoc(rekindle.plan)
    if sys.version_info >= (3, 10):  # Before, Python finds no signature of a class that is not its own.
        assert list(inspect.signature(rekindle.StageProfile).parameters)[:3] == ["name", "output_bytes", "tape_bytes"]
