"""What a notebook shows: well-formed, with every name a name."""

import xml.etree.ElementTree as xml

import pytest

import rekindle

SVG = "{http://www.w3.org/2000/svg}svg"
NASTY = "</td><script>alert(1)</script> & \"quotes\" 'too' \x01"


def parsed(value):
    return xml.fromstring(value._repr_html_())


def words(page):
    return " ".join(page.itertext())


def test_a_profile_is_a_table_of_its_stages(four):
    page = parsed(four)
    assert len(page.findall(".//tr")) == 1 + len(four)
    assert "block.3" in words(page) and "42.0 MiB to keep every tape" in words(page)


def test_a_plan_is_its_timeline_and_its_memory(four):
    page = parsed(rekindle.plan(four, "30MiB"))
    assert len(page.findall(f".//{SVG}")) == 2
    assert "peak 25.0 MiB of 30.0 MiB" in words(page)
    # From a file, a plan knows no profile to draw it with.
    loaded = rekindle.Plan.from_json(rekindle.plan(four, "30MiB").to_json())
    assert parsed(loaded).find(f".//{SVG}") is None
    assert parsed(rekindle.simulate(four, loaded).plan).find(f".//{SVG}") is not None


def test_a_simulation_shows_memory_and_what_sets_the_peak(four):
    page = parsed(rekindle.simulate(four, rekindle.plan(four, "30MiB")))
    assert len(page.findall(f".//{SVG}")) == 1
    assert "workspace of backward 4" in words(page)


def test_a_frontier_is_a_curve_without_a_plan(four):
    page = parsed(rekindle.frontier(four))
    assert len(page.findall(f".//{SVG}")) == 1
    assert "6 points" in words(page) and "this plan" not in words(page)


def test_explanations_and_estimates_are_tables(four):
    page = parsed(rekindle.explain(four, rekindle.plan(four, "30MiB")))
    assert len(page.findall(".//table")) == 3
    page = parsed(rekindle.estimate("gpt2", fit="24GiB"))
    assert "batch that fits 24.0 GiB" in words(page)


@pytest.mark.parametrize("count", [1, 2_000])
def test_names_stay_names_and_long_chains_stay_small(count):
    stages = [rekindle.StageProfile(f"{NASTY}{index}", 1, 8, 1, 2) for index in range(count)]
    profile = rekindle.Profile(NASTY, NASTY, 1, stages)
    plan = rekindle.plan(profile, solver="sqrt")
    for value in [profile, plan, rekindle.simulate(profile, plan), rekindle.explain(profile, plan)]:
        html = value._repr_html_()
        assert "<script>" not in html
        assert len(html) < 1_000_000
        parsed(value)
    if count > 64:
        assert f"and {count - 64} more stages" in profile._repr_html_()


def test_sizes_near_the_limit_are_drawn():
    stages = [rekindle.StageProfile("a", 2**60, 2**61, 2**60, 2**60)]
    profile = rekindle.Profile("huge", "none", 2**60, stages)
    for value in [profile, rekindle.plan(profile, "100%"), rekindle.frontier(profile)]:
        parsed(value)
