"""The ways to train that are compared. Each puts a model into its shape and says what it predicts, if it does."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
from torch.utils import checkpoint as torch_checkpoint

from models import Model

Batch = Tuple[torch.Tensor, torch.Tensor]
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Way:
    """How a model is run, and what was said beforehand."""

    def __init__(self, run: Step, predicted: Optional[int] = None, note: str = "", installed: Any = None):
        self.run, self.predicted, self.note, self.installed = run, predicted, note, installed


def plain(model: Model, _batch: Batch, _optimizer: Any) -> Way:
    return Way(model)


def per_block(model: Model, _batch: Batch, _optimizer: Any) -> Way:
    def around(block: Any, *inputs: Any) -> Any:
        return torch_checkpoint.checkpoint(block, *inputs, use_reentrant=False)

    model.around = around
    return Way(model)


def selective(model: Model, _batch: Batch, _optimizer: Any) -> Way:
    from rekindle.torch.options import costly_operations

    contexts = functools.partial(torch_checkpoint.create_selective_checkpoint_contexts, costly_operations())

    def around(block: Any, *inputs: Any) -> Any:
        return torch_checkpoint.checkpoint(block, *inputs, use_reentrant=False, context_fn=contexts)

    model.around = around
    return Way(model)


def compiled(part: float) -> Callable[..., Way]:
    def way(model: Model, _batch: Batch, _optimizer: Any) -> Way:
        import torch._functorch.config as functorch

        functorch.activation_memory_budget = part
        return Way(torch.compile(model, dynamic=False))

    return way


def compiled_per_block(model: Model, batch: Batch, optimizer: Any) -> Way:
    import torch._functorch.config as functorch

    functorch.activation_memory_budget = 1.0
    per_block(model, batch, optimizer)
    return Way(torch.compile(model, dynamic=False))


#: What stages may keep of their tapes when nothing is compiled.
PARTIAL = ("attention", "products", "parts")


def ours(
    budget: int, options: Sequence[Any] = PARTIAL, host: Optional[int] = None, group: int = 1
) -> Callable[..., Way]:
    """Ours at a budget for the whole step. With compiled options what lies behind the blocks is compiled as well, as it
    is when PyTorch compiles the model."""

    def way(model: Model, batch: Batch, optimizer: Any) -> Way:
        import rekindle.torch

        if any(isinstance(option, float) or option == "compile" for option in options or ()):
            import torch._functorch.config as functorch

            functorch.activation_memory_budget = 1.0
            model.loss_of = torch.compile(model.loss_of, dynamic=False)
        installed = rekindle.torch.auto(
            model,
            batch,
            budget,
            loss=lambda loss: loss,
            optimizer=optimizer,
            options=options,
            host=host,
            group=group,
        )
        report = installed.report
        ways = report.ways()
        note = "; ".join(f"{ways.count(way)}x {way}" for way in sorted(set(ways)))
        predicted = report.predicted_peak_bytes if report.whole_step else None
        return Way(model, predicted, note, installed)

    return way


def named(options: Dict[str, Any]) -> Dict[str, Callable[..., Way]]:
    """PyTorch's own ways, by their names."""
    ways: Dict[str, Callable[..., Way]] = {"plain": plain, "per-block": per_block}
    if hasattr(torch_checkpoint, "create_selective_checkpoint_contexts"):
        ways["selective"] = selective
    if hasattr(torch, "compile"):
        ways["compile"] = compiled(1.0)
        for part in options["parts"]:
            ways[f"compile-{part:g}"] = compiled(part)
        ways["compile-per-block"] = compiled_per_block
    return ways
