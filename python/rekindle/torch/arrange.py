"""Which stages keep results of their first run in host memory, and when these travel.

The link to host memory is one, each way. A result that is kept leaves when its stage has run and is gone some stages later;
until then it takes memory of the device. On the way back it has to be there when its stage is run again, and takes memory
from when it begins to come. All of this is decided from measured times before a step runs, and what it takes is added to
the workspace of the stages it happens beside: a plan for such a profile then counts it.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

from .keeping import ATTENTION, PARTS, PRODUCTS

#: The part of the link's measured speed that is counted on. Beside a computing device it was seen to be all of it.
LINK = 0.95

#: The part of its time the link may be used at most.
SHARE = 0.98


class Kept(NamedTuple):
    """One way to keep results of one stage: how large they are, and what both runs then take."""

    size: int
    first_ns: int
    second_ns: int


#: Of each stage, what each level keeps; stages that cannot keep anything have none.
Known = Sequence[Dict[str, Kept]]


class Arrangement:
    """Of one step: what each stage keeps, when it has left, and when it begins to come back."""

    __slots__ = ("levels", "releases", "fetches", "share_out", "share_back", "late_bytes", "known")

    def __init__(self) -> None:
        self.levels: Dict[int, str] = {}
        #: At which stage's run what a stage keeps has left the device.
        self.releases: Dict[int, int] = {}
        #: What begins to come when a stage goes back.
        self.fetches: Dict[int, List[int]] = {}
        #: The parts of the link's time that are used, each way.
        self.share_out = self.share_back = 0.0
        #: What is still on its way when the last stage has run, and has left when the model returns.
        self.late_bytes = 0
        #: What each level keeps of each stage.
        self.known: Known = ()

    def released(self, number: int) -> int:
        return self.releases.get(number, 0)

    def fetched_at(self, number: int) -> List[int]:
        return self.fetches.get(number, [])

    def gone_by_the_end(self, count: int) -> "Arrangement":
        """The same for a region of so many stages of which nobody says when its model returns."""
        if not self.late_bytes:
            return self
        other = copy.copy(self)
        other.releases = {number: min(stage, count + 1) for number, stage in self.releases.items()}
        other.late_bytes = 0
        return other


def arrangements(
    profile: Dict[str, Any], known: Known, write: int, read: int, room: int, beyond: int = 0, late: int = 0
) -> Iterator[Arrangement]:
    """Several to choose from: stages keep attention's results, some keep all products, or both, or the results that are worth
    most. The model goes on for ``beyond`` nanoseconds behind the region; so long things may leave, if they take no more than
    ``late`` bytes."""
    stages = profile["stages"]
    link = _Link(stages, known, write, room, beyond, late)
    attention = link.most({}, ATTENTION)
    products = link.most({}, PRODUCTS)
    # Of the results that are worth most, more and more, until the link carries no more of them.
    results: List[Dict[int, str]] = [{}]
    for name in sorted({level for kept in known for level in kept if is_result(level)}, key=count_of):
        more = link.most(results[-1], name)
        if more != results[-1]:
            results.append(more)
    seen: List[Dict[int, str]] = [{}]
    for levels in (attention, products, link.most(attention, PRODUCTS), *results[-2:]):
        if levels not in seen:
            seen.append(levels)
            yield _arranged(stages, known, levels, link, read)


def level_name(count: int) -> str:
    """The level that keeps so many results, as a recipe says."""
    return f"{count} results"


def is_result(level: str) -> bool:
    return level.endswith(" results")


def count_of(level: str) -> int:
    return int(level.split()[0])


class _Link:
    """The way out: what leaves in which order, and when it is gone."""

    def __init__(self, stages: List[Dict[str, Any]], known: Known, write: int, room: int, beyond: int = 0, late: int = 0):
        self.known, self.write, self.room, self.late = known, write, room, late
        self.ends = _sums(stage["forward_ns"] for stage in stages)
        self.whole = self.ends[-1] + beyond

    def most(self, levels: Dict[int, str], level: str) -> Dict[int, str]:
        """As many more stages with a level as the link carries, evenly spread."""
        # The last stage goes back first: what it had kept could only be waited for.
        able = [number for number, kept in enumerate(self.known[:-1], 1) if level in kept and kept[level].size]
        for count in range(len(able), 0, -1):
            chosen = {able[index * len(able) // count]: level for index in range(count)}
            if self.carries({**levels, **chosen}):
                return {**levels, **chosen}
        return levels

    def carries(self, levels: Dict[int, str]) -> bool:
        """Whether everything is gone before the model returns, and there is room for it."""
        sizes = [self.known[number - 1][level].size for number, level in levels.items()]
        gone, whole = self.gone(levels), self.whole
        late = sum(self.known[number - 1][levels[number]].size for number, at in gone.items() if at > self.ends[-1])
        in_time = self.used(levels) <= SHARE * whole and max(gone.values()) <= whole
        return in_time and sum(sizes) <= self.room and late <= self.late

    def takes(self, number: int, level: str) -> float:
        return self.known[number - 1][level].size / (self.write * LINK) * 1e9

    def used(self, levels: Dict[int, str]) -> float:
        return sum(self.takes(number, level) for number, level in levels.items())

    def gone(self, levels: Dict[int, str]) -> Dict[int, float]:
        """When what each stage keeps has left: one after the other."""
        now, found = 0.0, {}
        for number in sorted(levels):
            now = max(now, float(self.ends[number - 1])) + self.takes(number, levels[number])
            found[number] = now
        return found


def _arranged(
    stages: List[Dict[str, Any]], known: Known, levels: Dict[int, str], link: _Link, read: int
) -> Arrangement:
    arrangement = Arrangement()
    arrangement.known = known
    arrangement.levels = dict(sorted(levels.items()))
    arrangement.share_out = link.used(levels) / max(link.whole, 1)
    count, starts = len(stages), [0, *link.ends[:-1]]
    for number, gone in link.gone(levels).items():
        later = (other for other in range(number + 1, count + 1) if starts[other - 1] >= gone)
        at_the_end = count + 1 if gone <= link.ends[-1] else count + 2
        arrangement.releases[number] = next(later, at_the_end)
        if arrangement.releases[number] > count + 1:
            arrangement.late_bytes += known[number - 1][levels[number]].size
    _fetches(stages, known, arrangement, read)
    return arrangement


def _fetches(stages: List[Dict[str, Any]], known: Known, arrangement: Arrangement, read: int) -> None:
    """Each as late as it can be, so that it takes memory for as short as possible."""
    count = len(stages)
    # When the second run and the backward of each stage begin, the last one at 0.
    runs, backs, now = [0.0] * (count + 2), [0.0] * (count + 2), 0.0
    for number in range(count, 0, -1):
        level = arrangement.levels.get(number)
        again = known[number - 1][level].second_ns if level else 0
        runs[number] = now
        backs[number] = now + again
        now += again + stages[number - 1]["backward_ns"]
    used, before = 0.0, float("inf")
    # In the order of time the last one first.
    for number in sorted(arrangement.levels):
        takes = known[number - 1][arrangement.levels[number]].size / (read * LINK) * 1e9
        used += takes
        before = min(before, runs[number]) - takes
        at = next((other for other in range(number + 1, count + 1) if backs[other] <= before), count)
        arrangement.fetches.setdefault(at, []).append(number)
    for numbers in arrangement.fetches.values():
        numbers.sort(reverse=True)
    arrangement.share_back = used / max(now, 1.0)


def _sums(times: Any) -> List[int]:
    total, sums = 0, []
    for time in times:
        total += time
        sums.append(total)
    return sums


def arranged(
    profile: Dict[str, Any],
    known: Known,
    arrangement: Arrangement,
    later: Optional[Dict[int, int]] = None,
    everywhere: bool = True,
) -> Dict[str, Any]:
    """The profile of a region in which stages keep what is arranged. ``later`` has the room that a stage in two parts leaves in
    its second part, where it can take in what comes.

    What is on its way is counted beside every run of the stages it passes. If not ``everywhere``, what leaves is counted beside
    runs without a tape, and what comes beside those with one: stages that keep something are run without one first. Of a plan
    that does otherwise :func:`fits` tells whether it may."""
    changed = copy.deepcopy(profile)
    stages = changed["stages"]
    count = len(stages)
    for stage in stages:
        stage.setdefault("taped_extra_bytes", stage.get("forward_extra_bytes", 0))
    for number, level in arrangement.levels.items():
        stage, kept = stages[number - 1], known[number - 1][level]
        forwards = [stage["forward_ns"], *(option["forward_ns"] for option in stage.get("options", ()))]
        saved = 2 * stage["forward_ns"] - kept.first_ns - kept.second_ns
        saved = min([saved, *(forward_ns * 9 // 10 for forward_ns in forwards)])
        stage["unread_ns"] = max(saved, 0)
        # While its stage runs without a tape, and while it leaves.
        _add(stage, "forward_extra_bytes", kept.size)
        for other in range(number + 1, min(arrangement.released(number), count + 1)):
            _add(stages[other - 1], "forward_extra_bytes", kept.size)
            if everywhere:
                _add(stages[other - 1], "taped_extra_bytes", kept.size)
    rooms = dict(later or {})
    for at, numbers in arrangement.fetches.items():
        for number in numbers:
            size = known[number - 1][arrangement.levels[number]].size
            for other in range(number + 1, at + 1):
                stage = stages[other - 1]
                own = stage.get("backward_extra_bytes", 0)
                for option in stage.get("options", ()):
                    room = 0
                    if option["name"] == PARTS and other == at:
                        room = min(rooms.get(other, 0), size)
                        rooms[other] = rooms.get(other, 0) - room
                    there = option.get("backward_extra_bytes", own)
                    option["backward_extra_bytes"] = there + max(size - room, 0)
                stage["backward_extra_bytes"] = own + size
                if other < at:
                    _add(stage, "taped_extra_bytes", size)
                    if everywhere:
                        _add(stage, "forward_extra_bytes", size)
    for stage in stages:
        # A run without a tape takes no less than one with.
        _at_least(stage, "forward_extra_bytes", stage["taped_extra_bytes"])
    sizes = [known[number - 1][level].size for number, level in arrangement.levels.items()]
    boundary = max(changed["input_bytes"], *(stage["output_bytes"] for stage in stages), 1)
    for tier in changed.get("tiers", ()):
        tier["capacity_bytes"] = max(tier["capacity_bytes"] - sum(sizes), 0)
        for speed, share in (("write", arrangement.share_out), ("read", arrangement.share_back)):
            name = f"{speed}_bytes_per_second"
            tier[name] = _less(tier[name], share, boundary, max(sizes, default=0))
    return changed


def extra_name(way: Optional[str], level: Optional[str] = None) -> str:
    """What a run with a tape takes beyond it is known for each way, and for each level of what was kept before."""
    # Apart from the ways themselves, one of which has the name of a level.
    return f"{way or ''}+{level}" if level else way or ""


def with_options(
    profile: Dict[str, Any],
    extras: Sequence[Dict[str, int]],
    names: Optional[Sequence[str]] = None,
    levels: Sequence[str] = (),
) -> Dict[str, Any]:
    """The profile with some of the options alone (all without names). Of those that are left it is known what a run with a tape
    takes beyond it: much with a small tape, little with a large one, and a profile says the most of them."""
    changed = copy.deepcopy(profile)
    for stage, of_stage in zip(changed["stages"], extras):
        if names is not None and "options" in stage:
            stage["options"] = [option for option in stage["options"] if option["name"] in names]
        left = ["", *(option["name"] for option in stage.get("options", ()))]
        if all(name in of_stage for name in left):
            kept = [extra_name(name, level) for name in left for level in levels]
            most = max(of_stage.get(name, 0) for name in (*left, *kept))
            if most < stage.get("forward_extra_bytes", 0):
                stage["taped_extra_bytes"] = most
    return changed


def _add(stage: Dict[str, Any], what: str, size: int) -> None:
    stage[what] = stage.get(what, 0) + size


def _at_least(stage: Dict[str, Any], what: str, size: int) -> None:
    stage[what] = max(stage.get(what, 0), size)


def fits(
    actions: Sequence[str], peaks: Sequence[int], known: Known, arrangement: Arrangement, shift: int, usable: int
) -> bool:
    """Whether a plan has room for what is on its way beside runs that its profile does not count it for: those with a tape in the
    forward half, and those without in the other. ``peaks`` has what the judge says that each action takes; stage 1 of the region
    is ``shift`` stages behind that of the plan."""
    count = len(known)
    leaving, coming = [0] * (count + 2), [0] * (count + 2)
    for number, level in arrangement.levels.items():
        size = known[number - 1][level].size
        for other in range(number + 1, min(arrangement.released(number), count + 1)):
            leaving[other] += size
    for at, numbers in arrangement.fetches.items():
        for number in numbers:
            size = known[number - 1][arrangement.levels[number]].size
            for other in range(number + 1, at + 1):
                coming[other] += size
    turned = False
    for action, peak in zip(actions, peaks):
        word, subject, *_ = action.split()
        turned = turned or word == "backward"
        if word not in ("tape", "forward") or not 1 <= int(subject) - shift <= count:
            continue
        number = int(subject) - shift
        beside = coming[number] if turned and word == "forward" else leaving[number] if not turned and word == "tape" else 0
        if peak + beside > usable:
            return False
    return True


def _less(speed: int, share: float, boundary: int, largest: int) -> int:
    """What a link is for boundaries that others use for a part of its time. Things travel one after the other: each boundary may
    come behind the largest of the others."""
    takes = boundary / (speed * max(1.0 - share, 0.01)) + largest / (speed * LINK)
    return max(int(boundary / takes), 1)

