"""Autocast as it was in the forward pass: a backward pass runs on another thread, where it is off."""

from __future__ import annotations

from contextlib import ExitStack
from typing import List, Optional, Tuple

import torch


def _of(device: str) -> Tuple[bool, torch.dtype]:
    try:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)  # type: ignore[call-arg, attr-defined]
    except (TypeError, AttributeError):
        # Before PyTorch 2.4 each device has functions of its own.
        if device == "cuda":
            return torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
        return torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()


class Autocast:
    """Autocast on the CPU and on CUDA, as it was when this was made."""

    __slots__ = ("states", "cache", "enabled")

    def __init__(self) -> None:
        self.states: List[Tuple[str, bool, torch.dtype]] = [(device, *_of(device)) for device in ("cuda", "cpu")]
        self.cache = torch.is_autocast_cache_enabled()
        self.enabled = any(enabled for _, enabled, _ in self.states)

    def key(self) -> Tuple[Tuple[str, torch.dtype], ...]:
        """Where it was on, and in which type. It can be hashed."""
        return tuple((device, dtype) for device, enabled, dtype in self.states if enabled)

    def off(self) -> bool:
        """Whether it was off, and is."""
        return not self.enabled and not any(_of(device)[0] for device in ("cuda", "cpu"))

    def again(self) -> "Again":
        return Again(self)


class Again:
    """Within it, autocast is as it was. Weights that are cast within are cast for it alone: a cast that was made without
    a tape must not be found by a stage that has one."""

    __slots__ = ("autocast", "stack")

    def __init__(self, autocast: Autocast):
        self.autocast = autocast
        self.stack: Optional[ExitStack] = None

    def __enter__(self) -> None:
        then = self.autocast
        different = [state for state in then.states if (state[1] or _of(state[0])[0]) and _of(state[0]) != state[1:]]
        if not then.enabled and not different:
            return
        self.stack = ExitStack()
        for device, enabled, dtype in different:
            context = torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=then.cache)  # type: ignore[attr-defined]
            self.stack.enter_context(context)
        torch.clear_autocast_cache()

    def __exit__(self, *_: object) -> None:
        if self.stack is not None:
            torch.clear_autocast_cache()
            self.stack.close()
