"""The examples in the documentation run, and everything public has one or at least a line."""

import doctest
import inspect

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


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text in documented() if text and ">>>" in text])
def test_the_example_runs(name, text):
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    said = []
    failed, tried = doctest.DocTestRunner().run(test, out=said.append)
    assert tried > 0
    assert failed == 0, "".join(said)


def test_everything_public_is_documented():
    without = [name for name, text in documented() if not text]
    # What `get_all` offers is documented among the attributes of its class.
    assert [name for name in without if f"{name.split('.')[1]}" not in (PUBLIC[name.split(".")[0]].__doc__ or "")] == []
    examples = [name for name, text in documented() if text and ">>>" in text]
    functions = [name for name, value in PUBLIC.items() if inspect.isroutine(value)]
    assert set(functions) <= set(examples)
    assert len(examples) >= 20


def test_help_shows_the_parameters():
    signature = inspect.signature(rekindle.plan)
    assert signature.parameters["solver"].default == "optimal"
    assert signature.parameters["solver"].kind is inspect.Parameter.KEYWORD_ONLY
    assert "Parameters\n----------" in inspect.getdoc(rekindle.plan)
    assert list(inspect.signature(rekindle.StageProfile).parameters)[:3] == ["name", "output_bytes", "tape_bytes"]
