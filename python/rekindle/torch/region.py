"""A row of blocks that runs under a plan."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Tuple

import torch
from torch import nn

from rekindle import _core

from . import trees
from .autocast_state import Autocast
from .budgets import at_least_one
from .engine import Engine
from .errors import ChainNotFound, DeviceAbsent, NotInstalled
from .group import grouped
from .node import Step
from .random_state import Generators
from .report import Report
from .schedules import run_again_in_parts, run_again_unread
from .stage import Stage
from .wiring import FIRST, VALUE, WIRINGS, Call

def _forward(region: "Region", args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
    return region.run(args, kwargs)


def _outside_compiler() -> Any:
    """Runs a region where `torch.compile` does not look: its plan is no graph. Importing the compiler takes seconds, so that
    is left to those who compile."""
    global _forward_outside
    if _forward_outside is None:
        _forward_outside = torch.compiler.disable(_forward)  # type: ignore[attr-defined]
    return _forward_outside


_forward_outside: Any = None


class Planned:
    """What a region runs: a schedule, and where its plan came from."""

    __slots__ = ("schedule", "plan", "profile", "places", "known", "haunted", "parted", "arrangement", "keeps_all")

    def __init__(
        self,
        schedule: Any,
        actions: List[str],
        plan: Any = None,
        profile: Any = None,
        places: Any = None,
        known: Any = None,
    ):
        self.schedule, self.plan, self.profile, self.places = schedule, plan, profile, places
        #: Everything fits: the blocks run as they are, in the user's own graph.
        self.keeps_all = False
        #: The stages that are run again for their backward alone, where that was measured to pay.
        self.haunted = run_again_unread(actions)
        if known and "haunted" in known:
            self.haunted &= frozenset(known["haunted"])
        #: Those that are filled in two parts: what lies before attention comes last.
        self.parted = run_again_in_parts(actions)
        self.haunted |= self.parted
        #: What some keep in host memory of their first run.
        self.arrangement: Any = None
        #: How the profile was measured, and what lies around the region.
        self.known: Dict[str, Any] = known or {}


class Region(nn.Module):
    """Blocks in a row as one module. Stands in the place of the ``nn.Sequential`` or ``nn.ModuleList`` they were in.

    Called, it runs all of them. Iterated over, it gives itself, once: a model that goes over its blocks with
    ``for block in self.blocks: x = block(x)`` runs all of them in one turn. Its children have the names they had, so that
    weights are loaded and saved as before.
    """

    def __init__(
        self, container: nn.Module, planner: Any, wiring: Optional[str] = None, name: str = "", group: int = 1
    ):
        super().__init__()
        group = at_least_one(group, "group")
        blocks = list(container.named_children())
        if not blocks:
            raise ChainNotFound("there is no block to run, expected at least one in the container")
        if wiring is None:
            wiring = VALUE if isinstance(container, nn.Sequential) else FIRST
        if wiring not in WIRINGS:
            raise ChainNotFound(f"`{wiring}` is no wiring, expected one of: {', '.join(WIRINGS)}")
        for child, block in blocks:
            self.add_module(child, block)
        prefix = f"{name}." if name else ""
        rows = grouped(blocks, group, wiring)
        stages = [Stage(number, f"{prefix}{child}", block) for number, (child, block) in enumerate(rows, 1)]
        # Not as attributes of a module: they hold no parameters of their own.
        self.__dict__["stages"] = stages
        self.__dict__["container"] = container
        self.__dict__["planner"] = planner
        self.__dict__["wiring"] = wiring
        self.__dict__["planned"] = {}
        self.__dict__["watch"] = None
        self.__dict__["keeps_all"] = False
        # What runs all blocks as one, where that is faster than one stage after the other.
        self.__dict__["whole"] = None
        # What is on its way to host memory until the model returns.
        self.__dict__["late"] = weakref.WeakSet()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" in sys.modules:
            return _outside_compiler()(self, args, kwargs)
        return self.run(args, kwargs)

    def run(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        """Runs the blocks: under a plan, or as they are where nothing needs a gradient."""
        call, value = Call.take_apart(self.wiring, args, kwargs)
        if not torch.is_grad_enabled():
            return self._plain(call, value)
        tensors, spec = trees.flatten(value)
        extras, _ = trees.flatten(call.extras())
        tracked = any(tensor.requires_grad for tensor in tensors) or any(tensor.requires_grad for tensor in extras)
        if not tracked and not any(p.requires_grad for stage in self.stages for p in stage.parameters()):
            return self._plain(call, value)
        if self.keeps_all:
            return self._kept(call, value)
        planned = self._planned_for(call, tensors, spec, extras)
        if planned.keeps_all and self.watch is None:
            return self._kept(call, value)
        engine = Engine(self.stages, call, self._generators(tensors))
        engine.haunted = planned.haunted
        storage = None
        if planned.places:
            storage, engine.parcels = planned.places.storage, planned.places.parcels()
            if planned.arrangement is not None:
                engine.keepsakes = planned.places.keepsakes(planned.arrangement)
                engine.recipes = planned.known.get("recipes", {})
                if planned.arrangement.late_bytes:
                    self.late.add(engine.keepsakes)
        engine.parted = planned.parted
        executor = _core.Executor(planned.schedule, storage)
        step = Step(engine, executor, self.watch)
        return step.run(tensors, spec)

    def returned(self, *_: Any) -> None:
        """The model that the region is in has returned; a hook of it calls this."""
        for keepsakes in self.late:
            keepsakes.settle()
        self.late.clear()
        if self.watch is not None:
            self.watch("model returns")

    def _plain(self, call: Call, value: Any) -> Any:
        output = value
        for stage in self.stages:
            output = call.run(stage.untaped, value)
            value = call.hand_on(output)
        return output

    def _kept(self, call: Call, value: Any) -> Any:
        """Everything is kept: there is nothing to do for us, and nothing is done."""
        if self.whole is not None:
            return call.run(self.whole, value)
        output = value
        for stage in self.stages:
            output = call.run(stage.taped, value)
            value = call.hand_on(output)
        return output

    def _generators(self, tensors: List[torch.Tensor]) -> Generators:
        devices = {tensor.device for tensor in tensors}
        return Generators(sorted(devices, key=str))

    def _planned_for(self, call: Call, tensors: List[torch.Tensor], spec: Tuple[Any, ...], extras: List[torch.Tensor]) -> Planned:
        key = signature(tensors, extras, list(self._modules.values()))
        planned = self.planned.get(key)
        if planned is None:
            self._check_devices(tensors)
            planned = self.planned[key] = self.planner.plan(self, call, tensors, spec)
            planned.haunted &= self.hauntable
        return planned

    def _check_devices(self, tensors: List[torch.Tensor]) -> None:
        """Random numbers are replayed on the CPU and where the input is: what is drawn elsewhere would be drawn anew."""
        replayed = sorted({str(tensor.device) for tensor in tensors})
        for stage in self.stages:
            for device in stage.devices():
                if device.type == "cpu" or str(device) in replayed:
                    continue
                expected = " and ".join(replayed) or "no device"
                raise DeviceAbsent(
                    f"stage {stage.number} (`{stage.name}`) lies on {device}, but the region's input on {expected}, and random "
                    "numbers are replayed on the CPU and on the devices of the input alone; put all blocks of the region and "
                    "its input on one device, or make a region of the blocks on each",
                    stage=stage.number,
                    name=stage.name,
                    found=str(device),
                    expected=expected,
                )

    @property
    def current(self) -> Planned:
        """What was planned last."""
        if not self.planned:
            raise NotInstalled(
                "the region has no plan yet: it is measured and planned when it first runs with gradients"
            )
        return next(reversed(self.planned.values()))

    @property
    def plan(self) -> Any:
        """The plan that was made last; there is one for each shape of the input, and with autocast and without."""
        return self.current.plan

    @property
    def profile(self) -> Any:
        """The profile that plan was made from; ``None`` when nothing had to be measured."""
        return self.current.profile

    @property
    def report(self) -> Report:
        """What the plan does, in words."""
        planned = self.current
        return Report(planned.plan, [stage.name for stage in self.stages], planned.known)

    def save(self, path: Any) -> None:
        """Writes the plan that was made last to a file, with its profile and all that was found out for it: what second runs leave out,
        and what waits in host memory. ``checkpointed(..., plan=path)`` runs it as this does, and measures nothing."""
        from .saved import Saved

        Saved.of(self.current).save(path)

    def remove(self) -> nn.Module:
        """The container the blocks were in, to put back where the region stands."""
        return self.container

    @property
    def hauntable(self) -> FrozenSet[int]:
        """The stages whose first run may leave a graph without its values."""
        return frozenset(stage.number for stage in self.stages if stage.may_be_filled())

    def __iter__(self) -> Iterator["Region"]:
        return iter((self,))

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self._modules))
            if (start, step) == (0, 1) and stop >= len(self._modules):
                return self
            raise ChainNotFound(
                f"the model takes blocks {index.start} to {index.stop} out of a region of {len(self._modules)}, expected all "
                "of them; make a region of those it runs"
            )
        if index in (0, -1):
            return self
        raise IndexError(
            f"block {index} of a region was asked for by its number, but a region runs as one: go over it with `for`, or "
            "call it"
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # A model may read a setting off the block it is about to call: it is the region's if all blocks agree.
            stages = self.__dict__.get("stages")
            if stages is None or name.startswith("_"):
                raise
            found = [getattr(block, name) for block in self._modules.values()]
            if any(value is not found[0] and value != found[0] for value in found[1:]):
                raise AttributeError(
                    f"the blocks of the region differ in `{name}`, so it has none: give each its own region"
                ) from None
            return found[0]


def signature(tensors: List[torch.Tensor], extras: List[torch.Tensor], blocks: List[Any]) -> Tuple[Any, ...]:
    """What a plan depends on: shapes, types, devices, who needs a gradient, which of the blocks train, autocast on each device."""
    of_tensors = tuple(
        (tuple(t.shape), t.dtype, t.device, t.requires_grad) for group in (tensors, extras) for t in group
    )
    return of_tensors, tuple(block.training for block in blocks), Autocast().key()
