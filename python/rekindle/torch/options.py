"""Ways to keep less of a stage's tape: the results of costly calls, one part after the other, compiled with a part of its
activations, or by PyTorch's selective contexts.

Each way is an option in plans, by its name. A plan mixes them: this block keeps all of its tape, that one a part of it, and
a third is run again.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Dict, List, Sequence, Union

import torch
import torch.utils.checkpoint

from rekindle.errors import ArgumentError

from .errors import DeviceAbsent
from .group import Group
from .keeping import PARTIAL
from .stage import Stage

#: The parts of a block's activations that compiled options may keep. With none, its backward starts from its input.
BUDGETS = (0.75, 0.5, 0.25, 0.0)

COMPILE = "compile"
SELECTIVE = "selective"
RECOMPUTE = "recompute"
EACH = "compiled-each-0"


def whole_region(blocks: List[Any], wiring: str, options: Union[None, str, Sequence[Any]]) -> Any:
    """What runs all blocks as one compiled function, for when everything is kept; none where nothing is compiled."""
    named = [options] if isinstance(options, (str, float)) else list(options or ())
    if not any(option == COMPILE or isinstance(option, (int, float)) for option in named):
        return None
    return functools.partial(compiled_call(1.0), Group(blocks, wiring))


def install_options(stages: List[Stage], options: Union[None, str, Sequence[Any]]) -> None:
    """Gives stages their options: ``"attention"``, ``"products"``, ``"parts"``, ``"compile"``, ``"selective"``, ``"recompute"``,
    or a list with some of these and parts of activations such as ``0.5``."""
    if options is None:
        return
    named = [options] if isinstance(options, (str, float)) else list(options)
    parts: List[float] = []
    for option in named:
        if option == COMPILE:
            parts.extend(BUDGETS)
        elif option == SELECTIVE:
            _selective(stages)
        elif option == RECOMPUTE:
            _recompute(stages)
        elif option in PARTIAL:
            _partial(stages, option)
        elif isinstance(option, (int, float)) and 0 <= option <= 1:
            parts.append(float(option))
        else:
            raise ArgumentError(
                f"`{option}` is no option, expected \"attention\", \"products\", \"parts\", \"compile\", \"selective\", "
                "\"recompute\" or a part from 0 to 1 such as 0.5",
                argument="options",
            )
    if parts and any(option in PARTIAL for option in named):
        raise ArgumentError(
            "compiled options were given together with \"attention\", \"products\" or \"parts\", which run blocks that are not "
            "compiled; expected the one or the other",
            argument="options",
        )
    if parts:
        _compiled(stages, sorted({part for part in parts if part < 1}, reverse=True))


def _compiled(stages: List[Stage], parts: List[float]) -> None:
    if not hasattr(torch, "compile"):
        raise DeviceAbsent(f"this is PyTorch {torch.__version__}, which does not compile; expected 2.4 or later")
    whole = compiled_call(1.0)
    smaller = [(f"compiled-{part:g}", compiled_call(part)) for part in parts]
    for stage in stages:
        stage.taped = stage.untaped = functools.partial(whole, stage.block)
        for name, call in smaller:
            stage.ways[name] = functools.partial(call, stage.block)
        if isinstance(stage.block, Group) and 0.0 in parts:
            # Of each block its input, rather than of all of them the first one's: no more than one block is there at once.
            one = functools.partial(stage.block.one_by_one, smaller[-1][1])
            stage.ways[EACH] = one


def _call(block: Any, *args: Any, **kwargs: Any) -> Any:
    return block(*args, **kwargs)


def compiled_call(part: float) -> Callable[..., Any]:
    """Calls any block, compiled to keep this part of its activations. Blocks of the same code share what is compiled."""
    import torch._dynamo
    import torch._functorch.config as functorch
    from torch._inductor.compile_fx import compile_fx

    def compile_graph(graph: Any, inputs: Any, **settings: Any) -> Any:
        # The part is read when the graph of forward and backward is cut in two, which is here.
        with functorch.patch(activation_memory_budget=part):
            return compile_fx(graph, inputs, **settings)

    # What was compiled is found by the code that was called: each part has code of its own.
    code = _call.__code__.replace(co_name=f"call_keeping_{int(part * 1000)}")
    call = types.FunctionType(code, globals(), code.co_name)
    return torch.compile(call, backend=compile_graph, dynamic=False)  # type: ignore[attr-defined]


def _partial(stages: List[Stage], option: str) -> None:
    for stage in stages:
        if stage.may_be_filled():
            # The engine runs it: what is kept is no matter of how the block is called.
            stage.ways[option] = stage.block


def _recompute(stages: List[Stage]) -> None:
    for stage in stages:
        stage.ways[RECOMPUTE] = functools.partial(_checkpoint, stage, {})


def _selective(stages: List[Stage]) -> None:
    contexts = getattr(torch.utils.checkpoint, "create_selective_checkpoint_contexts", None)
    if contexts is None:
        raise DeviceAbsent(
            f"this is PyTorch {torch.__version__}, which has no selective contexts; expected 2.4 or later"
        )
    settings = {"context_fn": functools.partial(contexts, costly_operations())}
    for stage in stages:
        stage.ways[SELECTIVE] = functools.partial(_checkpoint, stage, settings)


def _checkpoint(stage: Stage, settings: Dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    """A block under PyTorch's own checkpoint. Its second run writes nothing down either."""
    block, ran = stage.block, False

    def once(*args: Any, **kwargs: Any) -> Any:
        nonlocal ran
        if not ran:
            ran = True
            return block(*args, **kwargs)
        with stage.buffers.stand_in(None):
            return block(*args, **kwargs)

    return torch.utils.checkpoint.checkpoint(once, *args, use_reentrant=False, **settings, **kwargs)


def costly_operations() -> List[Any]:
    """What is kept: products of matrices, attention, convolutions. The rest is cheap to compute again."""
    aten = torch.ops.aten  # type: ignore[attr-defined]
    names = (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "convolution",
    )
    return [getattr(aten, name).default for name in names if hasattr(aten, name)]
