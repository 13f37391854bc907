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

#: The part of the link's measured speed that is counted on.
LINK = 0.9

#: The part of its time the link may be used at most: boundaries have to travel as well.
SHARE = 0.95


class Kept(NamedTuple):
    """One way to keep results of one stage: how large they are, and what both runs then take."""

    size: int
    first_ns: int
    second_ns: int


#: Of each stage, what each level keeps; stages that cannot keep anything have none.
Known = Sequence[Dict[str, Kept]]


class Arrangement:
    """Of one step: what each stage keeps, when it has left, and when it begins to come back."""

    __slots__ = ("levels", "releases", "fetches", "share_out", "share_back")

    def __init__(self) -> None:
        self.levels: Dict[int, str] = {}
        #: At which stage's run what a stage keeps has left the device.
        self.releases: Dict[int, int] = {}
        #: What begins to come when a stage goes back.
        self.fetches: Dict[int, List[int]] = {}
        #: The parts of the link's time that are used, each way.
        self.share_out = self.share_back = 0.0

    def released(self, number: int) -> int:
        return self.releases.get(number, 0)

    def fetched_at(self, number: int) -> List[int]:
        return self.fetches.get(number, [])


def arrangements(profile: Dict[str, Any], known: Known, write: int, read: int, room: int) -> Iterator[Arrangement]:
    """Several to choose from: stages keep attention's results, some keep all products, or both."""
    stages = profile["stages"]
    link = _Link(stages, known, write, room)
    attention = link.most({}, ATTENTION)
    products = link.most({}, PRODUCTS)
    seen: List[Dict[int, str]] = [{}]
    for levels in (attention, products, link.most(attention, PRODUCTS)):
        if levels not in seen:
            seen.append(levels)
            yield _arranged(stages, known, levels, link, read)


class _Link:
    """The way out: what leaves in which order, and when it is gone."""

    def __init__(self, stages: List[Dict[str, Any]], known: Known, write: int, room: int):
        self.known, self.write, self.room = known, write, room
        self.ends = _sums(stage["forward_ns"] for stage in stages)

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
        """Whether everything is gone before the forward half ends, and there is room for it."""
        sizes = [self.known[number - 1][level].size for number, level in levels.items()]
        gone, whole = self.gone(levels), self.ends[-1]
        return sum(sizes) <= self.room and self.used(levels) <= SHARE * whole and max(gone.values()) <= whole

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
    arrangement.levels = dict(sorted(levels.items()))
    arrangement.share_out = link.used(levels) / max(link.ends[-1], 1)
    count, starts = len(stages), [0, *link.ends[:-1]]
    for number, gone in link.gone(levels).items():
        later = (other for other in range(number + 1, count + 1) if starts[other - 1] >= gone)
        arrangement.releases[number] = next(later, count + 1)
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
    profile: Dict[str, Any], known: Known, arrangement: Arrangement, later: Optional[Dict[int, int]] = None
) -> Dict[str, Any]:
    """The profile of a region in which stages keep what is arranged. ``later`` has the room that a stage in two parts leaves in
    its second part, where it can take in what comes."""
    changed = copy.deepcopy(profile)
    stages = changed["stages"]
    count = len(stages)
    for number, level in arrangement.levels.items():
        stage, kept = stages[number - 1], known[number - 1][level]
        forwards = [stage["forward_ns"], *(option["forward_ns"] for option in stage.get("options", ()))]
        saved = 2 * stage["forward_ns"] - kept.first_ns - kept.second_ns
        saved = min([saved, *(forward_ns * 9 // 10 for forward_ns in forwards)])
        stage["unread_ns"] = max(saved, 0)
        # While its stage runs without a tape, and while it leaves.
        _add(stage, "forward_extra_bytes", kept.size)
        for other in range(number + 1, min(arrangement.released(number), count + 1)):
            _add_to_forward(stages[other - 1], kept.size)
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
                    _add_to_forward(stage, size)
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


def _add_to_forward(stage: Dict[str, Any], size: int) -> None:
    _add(stage, "forward_extra_bytes", size)
    if "taped_extra_bytes" in stage:
        _add(stage, "taped_extra_bytes", size)


def _less(speed: int, share: float, boundary: int, largest: int) -> int:
    """What a link is for boundaries that others use for a part of its time. Things travel one after the other: each boundary may
    come behind the largest of the others."""
    takes = boundary / (speed * max(1.0 - share, 0.01)) + largest / (speed * LINK)
    return max(int(boundary / takes), 1)

