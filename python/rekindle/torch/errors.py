"""What can go wrong in a region of PyTorch's, each with what was found, what was expected and what to do.

Where Rust has the same error, the words are the same.
"""

from __future__ import annotations

from typing import Optional

from rekindle import errors
from rekindle.errors import RekindleError


class TorchError(RekindleError):
    """The base of everything a region of PyTorch's raises by itself."""


class PlanLength(TorchError):
    """The plan is for a chain of another length."""

    def __init__(self, plan: int, region: int):
        super().__init__(
            f"the plan is for {plan} stages, but the region has {region}; plan the region again, or give it the "
            "stages the plan was made for"
        )
        self.plan, self.region = plan, region


class OtherModel(TorchError, errors.OtherModel):
    """The plan is for another model, other shapes or another device."""

    def __init__(self, difference: str, **parts: str):
        super().__init__(
            f"the plan is for another model; {difference}. Plan again for this one, or give it what the plan was "
            "made for",
            **parts,
        )
        self.difference = difference


class NotSaved(TorchError):
    """A plan that cannot be written to a file with all that it needs to run."""


class OfStage(TorchError):
    """What went wrong in one stage."""

    def __init__(self, message: str, stage: int, name: str):
        super().__init__(message)
        self.stage, self.name = stage, name


class StageChanged(OfStage):
    """The stage did not do in the recomputation what it did in the forward pass."""

    def __init__(self, stage: int, name: str, tensor: int, forward: str, recompute: str, of: str = "its output"):
        super().__init__(
            f"stage {stage} (`{name}`) made {recompute} for tensor {tensor} of {of} when it was recomputed, but "
            f"{forward} in the forward pass; make it depend on nothing but its input, its parameters and PyTorch's "
            "random numbers, or leave it out of the region",
            stage,
            name,
        )
        self.tensor, self.forward, self.recompute = tensor, forward, recompute


class InputChanged(OfStage):
    """A stage wrote over its input, from which it would have to be run again."""

    def __init__(self, stage: int, name: str, tensor: int):
        super().__init__(
            f"stage {stage} (`{name}`) changed tensor {tensor} of its input in place, so it cannot be run again from "
            "there; make it write elsewhere (`inplace=False`), or put it into one stage with what comes before it",
            stage,
            name,
        )
        self.tensor = tensor


class KeptChanged(OfStage):
    """Something a stage is run again from was changed between the forward and the backward pass."""

    def __init__(self, stage: int, name: str, what: str, found: int, expected: int):
        super().__init__(
            f"stage {stage} (`{name}`) cannot be run again: {what} was changed in place since the forward pass (it is at "
            f"version {found}, expected {expected}); change it after the backward pass, as plain PyTorch demands, too",
            stage,
            name,
        )
        self.what, self.found, self.expected = what, found, expected


class TrackedCapture(OfStage):
    """A stage uses a tensor of the outer graph that is neither its input nor a parameter of its module."""

    def __init__(self, stage: int, name: str, found: str):
        super().__init__(
            f"stage {stage} (`{name}`) uses a tracked tensor that is neither its input nor a parameter of its module "
            f"({found}), so its gradient would be lost; pass the tensor as an argument, make it a parameter of the "
            "module, or make it a constant with `.detach()`",
            stage,
            name,
        )
        self.found = found


class UnknownOption(OfStage):
    """The plan keeps a tape in a way this region does not offer."""

    def __init__(self, stage: int, name: str, option: str, known: str):
        super().__init__(
            f"stage {stage} (`{name}`) has no tape option `{option}`, expected none or one of: {known}", stage, name
        )
        self.option = option


class BackwardTwice(TorchError):
    """The backward pass was run a second time."""

    def __init__(self) -> None:
        super().__init__(
            "the region has gone back already, and what it kept is gone; call `backward` once for each forward pass, "
            "and add losses up before it instead of giving `retain_graph=True`"
        )


class DoubleBackward(TorchError):
    """A gradient of a gradient was asked for."""

    def __init__(self) -> None:
        super().__init__(
            "a region has no gradient of its gradient: `create_graph=True` was given; take the region out with "
            "`remove()` where you need second derivatives"
        )


class ChainNotFound(TorchError):
    """There are no blocks in a row, or they are not called in a way that can be planned."""


class DeviceAbsent(TorchError):
    """CUDA was asked for and is not there, or a region lies on several devices.

    Attributes
    ----------
    stage, name : int, str or None
        Of a region on several devices: the stage that lies elsewhere than the region's input.
    found, expected : str or None
        Where that stage lies, and where the input does.
    """

    stage: Optional[int] = None
    name: Optional[str] = None
    found: Optional[str] = None
    expected: Optional[str] = None


class NotInstalled(TorchError):
    """There is nothing to undo, or no plan yet."""
