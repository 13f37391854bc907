"""What lies around a region in a step: the parts of the model before and after it, gradients, the optimizer's state.

A budget for a whole step is one for `torch.cuda.max_memory_allocated`. So the step is planned as a chain: what runs before
the region as a first stage and what runs after it, the loss included, as a last one. Both run once, as they are; the plan
only chooses what the region does between them. What is there when the step begins is taken off the budget.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterable, List, Optional

import torch

from .trees import tensor_bytes

BEFORE = "(before the region)"
AFTER = "(after the region)"


class Watch:
    """Memory and time at the turning points of a step."""

    def __init__(self, device: torch.device):
        self.device = device
        self.live: Dict[str, int] = {}
        self.peak: Dict[str, int] = {}
        self.at: Dict[str, int] = {}
        #: What was asked for of what is there, where PyTorch counts that.
        self.asked: Dict[str, Optional[int]] = {}

    def __call__(self, point: str) -> None:
        cuda = self.device.type == "cuda"
        if cuda:
            torch.cuda.synchronize(self.device)
            self.live[point] = torch.cuda.memory_allocated(self.device)
            self.peak[point] = torch.cuda.max_memory_allocated(self.device)
            self.asked[point] = torch.cuda.memory_stats(self.device).get("requested_bytes.all.current")
            torch.cuda.reset_peak_memory_stats(self.device)
        self.at[point] = time.perf_counter_ns()

    def is_exact(self, counters: int) -> bool:
        """Whether the allocator handed out what was asked for of all that is there when a step begins. It gives whole pieces of 512
        bytes, which is the same each time; but rests of up to a mebibyte that it does not cut off are there or not as it comes. They
        are of the sizes of parameters, which their gradients have as well. ``counters`` tensors have a single number."""
        asked = self.asked.get("step begins")
        return asked is not None and self.live["step begins"] - asked <= EXACT + SMALLEST * counters


#: What whole pieces of 512 bytes may come to beside these. A rest is mostly larger.
EXACT = 1 << 16


class Surroundings:
    """What a step takes around its region."""

    def __init__(self, base_bytes: int, before: Dict[str, int], after: Dict[str, int], to_come: int = 0):
        #: What is there when a step begins, and what the optimizer will add.
        self.base_bytes, self.to_come = base_bytes, to_come
        self.before, self.after = before, after

    def scaled(self, factor: float) -> "Surroundings":
        """For an input of another size. Parameters stay what they are; a guess, but a fair one."""
        return Surroundings(self.base_bytes, _scaled(self.before, factor), _scaled(self.after, factor), self.to_come)

    def time_ns(self) -> int:
        """What the step takes beside the region."""
        return sum(part["forward_ns"] + part["backward_ns"] for part in (self.before, self.after))

    def beyond_ns(self) -> int:
        """How long the model goes on behind the region before it returns."""
        return self.after.get("returns_ns", 0)

    def late_bytes(self) -> int:
        """What may be on its way behind the region without the step taking more than its loss needs when it goes back."""
        after = self.after
        back = after["tape_bytes"] + after["backward_extra_bytes"] + after["parameter_gradient_bytes"]
        return max(back - after.get("returns_peak_bytes", 0), 0)

    def around(self, profile: Dict[str, Any], late_bytes: int = 0) -> Dict[str, Any]:
        """The profile of a whole step out of that of a region of which so much is on its way until the model returns."""
        input_bytes = profile["input_bytes"]
        before = _stage(BEFORE, self.before, input_bytes)
        after = _stage(AFTER, self.after, 0)
        if late_bytes:
            meanwhile = self.after["returns_peak_bytes"] + late_bytes - after["tape_bytes"]
            after["forward_extra_bytes"] = max(after["forward_extra_bytes"], meanwhile)
        return {**profile, "input_bytes": 0, "stages": [before, *profile["stages"], after]}


def is_whole(profile: Dict[str, Any]) -> bool:
    """Whether a profile is one of a whole step."""
    return bool(profile["stages"]) and profile["stages"][0]["name"] == BEFORE


def region_of(profile: Dict[str, Any]) -> Dict[str, Any]:
    """The profile of the region in a whole step's."""
    before, *stages, _after = profile["stages"]
    return {**profile, "input_bytes": before["output_bytes"], "stages": stages}


def _scaled(part: Dict[str, int], factor: float) -> Dict[str, int]:
    fixed = "parameter_gradient_bytes"
    return {name: value if name == fixed else int(value * factor) for name, value in part.items()}


def _stage(name: str, part: Dict[str, int], output_bytes: int) -> Dict[str, Any]:
    return {
        "name": name,
        "output_bytes": output_bytes,
        "tape_bytes": max(part["tape_bytes"], output_bytes),
        "forward_ns": part["forward_ns"],
        "backward_ns": part["backward_ns"],
        "forward_extra_bytes": part["forward_extra_bytes"],
        "backward_extra_bytes": part["backward_extra_bytes"],
        "parameter_gradient_bytes": part["parameter_gradient_bytes"],
        "pinned": True,
    }


def surroundings(watch: Watch, region_gradient_bytes: int, to_come: int, accumulates: bool) -> Surroundings:
    """From what was seen in one step of the model with any plan in its region: all of this is differences."""
    live, peak, at = watch.live, watch.peak, watch.at
    returns = "model returns" if "model returns" in peak else "forward ends"

    def left(value: int) -> int:
        return max(value, 0)

    start = live["step begins"]
    after_gradients = left(live["backward begins"] - live["forward ends"])
    all_gradients = live["step ends"] - start
    before_gradients = left(all_gradients - region_gradient_bytes - after_gradients)
    before = {
        "tape_bytes": left(live["forward begins"] - start),
        "forward_extra_bytes": left(peak["forward begins"] - live["forward begins"]),
        "backward_extra_bytes": left(peak["step ends"] - live["backward ends"] - before_gradients),
        "parameter_gradient_bytes": before_gradients,
        "forward_ns": at["forward begins"] - at["step begins"],
        "backward_ns": at["step ends"] - at["backward ends"],
    }
    after = {
        "tape_bytes": left(live["loss"] - live["forward ends"]),
        "forward_extra_bytes": left(max(peak["loss"], peak[returns] if returns != "forward ends" else 0) - live["loss"]),
        "backward_extra_bytes": left(peak["backward begins"] - live["loss"] - after_gradients),
        "parameter_gradient_bytes": after_gradients,
        "forward_ns": at["loss"] - at["forward ends"],
        "backward_ns": at["backward begins"] - at["loss"],
        # Until the model returns.
        "returns_ns": at[returns] - at["forward ends"],
        "returns_peak_bytes": left(peak[returns] - live["forward ends"]) if returns != "forward ends" else 0,
    }
    if accumulates:
        # They are added to what is there, and gone.
        for part in (before, after):
            part["backward_extra_bytes"] += part["parameter_gradient_bytes"]
            part["parameter_gradient_bytes"] = 0
    return Surroundings(start + to_come, before, after, to_come)


def plain_peak(
    model: torch.nn.Module, run: Callable[[], torch.Tensor], region: Any, device: torch.device
) -> int:
    """The most that a step has allocated in which the region keeps everything."""
    region.__dict__["keeps_all"] = True
    try:
        return peak_of(one_step(model, run, region, device))
    finally:
        region.__dict__["keeps_all"] = False


def peak_of(watch: Watch) -> int:
    """The most that a watched step had allocated; what was there before it began does not count."""
    return max(peak for point, peak in watch.peak.items() if point != "step begins")


def one_step(
    model: torch.nn.Module,
    run: Callable[[], torch.Tensor],
    region: Any,
    device: torch.device,
) -> Watch:
    """One forward and backward pass, watched. The model's gradients are afterwards what they were."""
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        watch = Watch(device)
        region.__dict__["watch"] = watch
        watch("step begins")
        loss = run()
        watch("loss")
        loss.backward()
        del loss
        watch("step ends")
        return watch
    finally:
        region.__dict__["watch"] = None
        for parameter, gradient in zip(parameters, gradients):
            parameter.grad = gradient


def state_to_come(optimizer: Optional[torch.optim.Optimizer], device: torch.device) -> Optional[int]:
    """The bytes that an optimizer will allocate at its first step; ``None`` when nobody knows."""
    if optimizer is None:
        return 0
    each = _state_tensors(optimizer)
    if each is None:
        return None if not optimizer.state else 0
    total = 0
    for group in optimizer.param_groups:
        count, counters = each(group), SMALLEST if counts_on_device(group) else 0
        for parameter in _new(group["params"], optimizer, device):
            total += count * allocated_bytes(tensor_bytes(parameter)) + counters
    return total


def state_as_it_will_be(optimizer: Optional[torch.optim.Optimizer], device: torch.device) -> Optional[List[torch.Tensor]]:
    """Memory like that of the state that an optimizer will have after its first step, where PyTorch's allocator puts it; ``None``
    when nobody knows, or when there is no room for it now."""
    each = None if optimizer is None else _state_tensors(optimizer)
    if optimizer is None or each is None:
        return None
    made: List[torch.Tensor] = []
    try:
        for group in optimizer.param_groups:
            for parameter in _new(group["params"], optimizer, device):
                made += [torch.empty_like(parameter, requires_grad=False) for _ in range(each(group))]
                if counts_on_device(group):
                    made.append(torch.empty((), dtype=torch.float32, device=device))
    except RuntimeError:
        # Of which running out of memory is one. What it takes is estimated then.
        return None
    return made


#: The least that PyTorch's CUDA allocator hands out.
SMALLEST = 512


def counts_on_device(group: Dict[str, Any]) -> bool:
    """Whether each parameter has a number of its own on the device: how many steps there were."""
    return bool(group.get("fused") or group.get("capturable"))


def allocated_bytes(size: int) -> int:
    """What PyTorch's CUDA allocator hands out for a large tensor on its own: a rest of up to a mebibyte is not cut off."""
    mebibyte = 1 << 20
    if size < 10 * mebibyte:
        return size
    rest = -size % (2 * mebibyte)
    return size + rest if rest <= mebibyte else size


def _new(parameters: Iterable[torch.Tensor], optimizer: Any, device: torch.device) -> List[torch.Tensor]:
    found = [p for p in parameters if p.requires_grad and p.device == device]
    return [p for p in found if not optimizer.state.get(p)]


def _state_tensors(optimizer: Any) -> Optional[Callable[[Dict[str, Any]], int]]:
    """How many tensors of a parameter's size each parameter gets."""
    kinds = {
        "Adam": lambda group: 3 if group.get("amsgrad") else 2,
        "AdamW": lambda group: 3 if group.get("amsgrad") else 2,
        "NAdam": lambda group: 2,
        "RAdam": lambda group: 2,
        "Adamax": lambda group: 2,
        "SGD": lambda group: 1 if group.get("momentum") else 0,
        "RMSprop": lambda group: 1 + bool(group.get("momentum")) + bool(group.get("centered")),
    }
    return kinds.get(type(optimizer).__name__)
