"""Profiles: made, read, written, compared, refused."""

import copy
import json
import pickle

import pytest
from chains import profiles
from hypothesis import given

import rekindle
from rekindle import Codec, Profile, ProfileError, SizeError, StageProfile, TapeOption, Tier, WrongType

STAGE = StageProfile("a", 4, 16, 5, 9)


def test_a_committed_profile_reads_with_every_field(root):
    profile = Profile.load(root / "fuzz/seeds/profile_json/two.json")
    assert (profile.model, profile.device, profile.input_bytes) == ("two", "none", 4)
    first = profile[0]
    assert first == StageProfile(
        "a",
        4,
        16,
        5,
        9,
        forward_extra_bytes=1,
        backward_extra_bytes=2,
        gradient_bytes=3,
        options=[TapeOption("light", 8, 5, 11)],
    )
    assert profile.tiers == [Tier("host", 64, 10**9, 2 * 10**9)]
    assert profile.codecs == [Codec("half", 512, 1000, 1000)]
    assert profile.lower_bound_ns == 5 + 9 + 6 + 8


@given(profiles())
def test_profiles_come_back_as_they_were(profile):
    assert Profile.from_json(profile.to_json()) == profile
    assert pickle.loads(pickle.dumps(profile)) == profile
    assert copy.deepcopy(profile) == profile
    assert profile.with_stages(profile) == profile
    assert hash(copy.copy(profile)) == hash(profile)
    for stage in profile:
        assert pickle.loads(pickle.dumps(stage)) == stage
        assert eval(repr(stage), vars(rekindle)) == stage


def test_tiers_and_codecs_come_back_as_they_were():
    for value in [Tier("host", "1GiB", "12GB", "13GB"), Codec("bf16", 512, 3, 4), TapeOption("o", 1, 2, 3)]:
        assert pickle.loads(pickle.dumps(value)) == value
        assert copy.copy(value) == value
        assert eval(repr(value), vars(rekindle)) == value
        assert hash(copy.copy(value)) == hash(value)
    assert TapeOption("o", 1, 2, 3) != TapeOption("o", 1, 2, 3, backward_extra_bytes=0)


def test_profiles_differ_where_anything_differs(four):
    changed = four.with_stages([stage.replace(forward_ns=7) for stage in four])
    assert changed != four and changed.fingerprint == four.fingerprint
    resized = four.with_stages([stage.replace(tape_bytes="64MiB") for stage in four])
    assert resized.fingerprint != four.fingerprint
    placed = four.with_places([Tier("host", "1GiB", "1GB", "1GB")], [Codec("bf16", 512, "1GB", "1GB")])
    assert placed != four and placed.with_places() == four
    assert placed.with_stages(four).tiers == placed.tiers
    assert four != "four"


def test_a_profile_is_a_sequence_of_its_stages(four):
    assert len(four) == 4
    assert [stage.name for stage in four] == [f"block.{index}" for index in range(4)]
    assert four[-1] == four[3] == four.stages[3]
    assert STAGE not in four and four[2] in four
    for index in (4, -5):
        with pytest.raises(IndexError, match="among 4"):
            four[index]


def test_files_are_written_whole_and_read_back(tmp_path, four):
    path = tmp_path / "profile.json"
    path.write_text("what was there")
    four.save(path)
    assert Profile.load(path) == four
    assert Profile.load(str(path)) == four
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]
    with pytest.raises(FileNotFoundError, match="cannot read") as caught:
        Profile.load(tmp_path / "missing.json")
    assert caught.value.filename == str(tmp_path / "missing.json")
    with pytest.raises(OSError, match="cannot write"):
        four.save(tmp_path / "no" / "folder.json")
    path.write_bytes(b'{"format": "\xff"}')
    with pytest.raises(ProfileError, match="byte 12 is not UTF-8"):
        Profile.load(path)


def test_numbers_are_what_the_file_says(four):
    file = json.loads(four.to_json())
    assert file["format"] == "rekindle.profile/1"
    assert file["stages"][3]["tape_bytes"] == 11 * 2**20
    assert "pinned" not in file["stages"][3]


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: Profile("m", "d", 1, []), "no stages", "has no stages"),
        (lambda: Profile("m", "d", 1, [STAGE.replace(name="")]), "unnamed", "empty name"),
        (lambda: Profile("m", "d", 1, [STAGE.replace(tape_bytes=3)]), "tape without output", "includes the output"),
        (lambda: Profile("m", "d", 1, [STAGE.replace(passed_bytes=2)]), "passed too much", "no more than either"),
        (lambda: Profile("m", "d", 1, [STAGE.replace(unread_ns=6)]), "saved too much", "fastest forward"),
        (lambda: Profile("m", "d", 2**64 - 1, [STAGE]), "too large", "more than 2\\^64"),
        (lambda: Profile("m", "d", 1, [STAGE], [Tier("t", 1, 0, 1)]), "still", "0 bytes per second"),
        (lambda: Profile("m", "d", 1, [STAGE], [Tier("t", 1, 1, 1)] * 2), "named twice", "stands twice"),
        (lambda: Profile.from_json("{"), "truncated", "ends too early"),
        (lambda: Profile.from_json("{]"), "invalid", "cannot be read"),
        (lambda: Profile.from_json('{"format": "rekindle.profile/2"}'), "version", "expected"),
    ],
)
def test_what_cannot_be_planned_is_refused(make, kind, words):
    with pytest.raises(ProfileError, match=words) as caught:
        make()
    assert caught.value.kind == kind
    assert isinstance(caught.value, ValueError)


def test_a_refusal_names_the_stage():
    with pytest.raises(ProfileError) as caught:
        Profile("m", "d", 1, [STAGE, STAGE.replace(name="b", tape_bytes=2)])
    error = caught.value
    assert (error.stage, error.name, error.tape_bytes, error.output_bytes) == (2, "b", 2, 4)
    assert error.message == (
        "stage 2 (`b`) keeps a tape of 2 B but makes an output of 4 B; a tape includes the output"
    )


def test_a_text_that_was_cut_off_says_where(four):
    text = four.to_json()
    for end in range(0, len(text), 97):
        with pytest.raises(ProfileError) as caught:
            Profile.from_json(text[:end])
        assert caught.value.kind == "truncated"
        assert caught.value.line == text[:end].count("\n") + 1


@pytest.mark.parametrize("found", [-1, 2**64, pytest.param(10**5000, id="10**5000"), 1.5, float("nan"), float("inf"), "-1", "NaN", "1e9", ""])
def test_what_is_no_size_is_refused(found):
    for make in [
        lambda: StageProfile("a", found, 16),
        lambda: StageProfile("a", 0, 16, passed_bytes=found),
        lambda: Profile("m", "d", found, [STAGE]),
        lambda: Tier("t", found, 1, 1),
    ]:
        with pytest.raises(SizeError, match="is not a size: expected a number and a unit") as caught:
            make()
        assert caught.value.argument in {"output_bytes", "passed_bytes", "input_bytes", "capacity_bytes"}
        assert "64MiB" in caught.value.hint


@pytest.mark.parametrize("found", [None, True, [1], b"1", object()])
def test_what_is_of_another_type_is_refused(found):
    with pytest.raises(WrongType, match="`output_bytes` is of the type") as caught:
        StageProfile("a", found, 16)
    assert isinstance(caught.value, TypeError)
    assert caught.value.found == type(found).__name__


@pytest.mark.parametrize("found", [-1, 2**64, 0.5, float("nan")])
def test_what_is_no_time_is_refused(found):
    with pytest.raises(rekindle.ArgumentError, match="is not a time: expected whole nanoseconds") as caught:
        StageProfile("a", 1, 16, found)
    assert caught.value.argument == "forward_ns"


def test_numbers_that_know_how_to_be_whole_are_taken():
    numpy = pytest.importorskip("numpy")
    assert StageProfile("a", numpy.int64(4), numpy.uint8(16)).tape_bytes == 16
    with pytest.raises(SizeError):
        StageProfile("a", numpy.float64(4.0), 16)


def test_things_that_are_no_stages_are_refused():
    with pytest.raises(WrongType, match="expected StageProfile"):
        Profile("m", "d", 1, [STAGE, "stage"])
    with pytest.raises(WrongType, match="expected TapeOption"):
        StageProfile("a", 1, 2, options=["balanced"])
    with pytest.raises(WrongType, match="expected Tier"):
        Profile("m", "d", 1, [STAGE], tiers=[Codec("bf16", 512, 1, 1)])
    with pytest.raises(TypeError):
        Profile("m", "d", 1, 7)
    with pytest.raises(TypeError):
        StageProfile("a", 1, 2, sise=3)
    with pytest.raises(TypeError):
        STAGE.replace(sise=3)


def test_a_name_is_one_word():
    with pytest.raises(rekindle.ArgumentError, match="`two words` is not a name") as caught:
        TapeOption("two words", 1, 1, 1)
    assert caught.value.found == "two words"


def test_nothing_can_be_changed_in_place(four):
    with pytest.raises(AttributeError):
        four[0].tape_bytes = 1
    four.stages.append(STAGE)
    assert len(four) == 4


def test_sizes_are_read_and_written_as_people_do():
    assert rekindle.parse_bytes(" 64 mib ") == 64 * 2**20
    assert rekindle.format_bytes(rekindle.parse_bytes("1.5GiB")) == "1.5 GiB"
    with pytest.raises(SizeError) as caught:
        rekindle.parse_bytes("64 parsecs")
    assert caught.value.found == "64 parsecs"
    assert caught.value.message == (
        "`64 parsecs` is not a size: expected a number and a unit, such as 64MiB, 1.5GiB, 2GB or 4096"
    )
