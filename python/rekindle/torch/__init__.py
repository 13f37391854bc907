"""Checkpointing for PyTorch to a budget in bytes: rekindle's planner and executor inside autograd.

>>> import torch, rekindle.torch
>>> model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()) for _ in range(8)])
>>> x = torch.randn(32, 64)
>>> blocks = rekindle.torch.checkpointed(model, strategy="every-2")
>>> blocks(x).square().mean().backward()  # the gradients of plain PyTorch, bit for bit

With a budget the blocks are measured and the fastest plan is found:

>>> installed = rekindle.torch.auto(model, x, budget="128KiB", loss=lambda y: y.square().mean())
>>> _ = installed.remove()
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "rekindle.torch needs PyTorch, which cannot be imported here; pip install torch, or install your system's "
        "package of it"
    ) from error

from .api import Installed, auto, checkpointed
from .errors import (
    BackwardTwice,
    ChainNotFound,
    DeviceAbsent,
    DoubleBackward,
    InputChanged,
    KeptChanged,
    NotInstalled,
    NotSaved,
    OtherModel,
    PlanLength,
    StageChanged,
    TorchError,
    TrackedCapture,
    UnknownOption,
)
from .offload import Places
from .region import Region
from .report import Report

__all__ = [
    "BackwardTwice",
    "ChainNotFound",
    "DeviceAbsent",
    "DoubleBackward",
    "InputChanged",
    "Installed",
    "KeptChanged",
    "NotInstalled",
    "NotSaved",
    "OtherModel",
    "PlanLength",
    "Places",
    "Region",
    "Report",
    "StageChanged",
    "TorchError",
    "TrackedCapture",
    "UnknownOption",
    "auto",
    "checkpointed",
]
