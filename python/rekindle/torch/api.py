"""`checkpointed` and `auto`: what people call."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import nn

import rekindle
from rekindle.errors import BudgetTooSmall

from . import trees
from .autocast_state import Autocast
from .buffers import Buffers
from .discovery import find_chain
from .errors import ChainNotFound, DeviceAbsent, NotInstalled
from .offload import Disk, Places
from .options import install_options, whole_region
from .planner import Planner
from .random_state import Generators
from .region import Planned, Region
from .report import Report
from .schedules import schedule_by_rule
from .whole_step import one_step, peak_of, plain_peak, state_as_it_will_be, state_to_come, surroundings
from .wiring import Call


def checkpointed(
    layers: Union[nn.Module, Iterable[nn.Module]],
    budget: Any = None,
    *,
    strategy: str = "optimal",
    options: Union[None, str, Sequence[Any]] = None,
    host: Any = None,
    disk: Optional[Disk] = None,
    codecs: Sequence[str] = (),
    host_codec: Optional[str] = None,
    plan: Any = None,
    profile: Any = None,
    wiring: Optional[str] = None,
    group: int = 1,
    name: str = "",
    margin: Optional[float] = None,
    runs: int = 5,
    progress: Optional[Callable[[int, str], None]] = None,
) -> Region:
    """Blocks in a row as one module that keeps to a budget.

    Put it where the blocks were::

        model.layers = rekindle.torch.checkpointed(model.layers, budget="8GiB")

    It is measured and planned when it first runs with gradients, once for each shape of its input, with autocast and without.

    Parameters
    ----------
    layers : nn.Sequential, nn.ModuleList or list of modules
        The blocks. What one gives the next one takes.
    budget : int or str
        The most that the region's activations may take: boundaries, tapes, gradients as they come.
    strategy : str
        Who plans: ``"optimal"``, another solver, or a rule that needs no budget, such as ``"every-1"`` (each block by
        itself), ``"sqrt"``, ``"store-all"``.
    options : str or list
        Other ways to keep a block's tape: ``"attention"`` and ``"products"`` (the results of its costly calls), ``"parts"`` (what
        lies before attention is run again last), ``"compile"`` (several parts of its activations under ``torch.compile``),
        ``"selective"`` (PyTorch's selective contexts), or a list with some of these and parts of activations such as ``0.5``.
    host, disk : size; folder, or folder and size
        Where boundaries may go. On CUDA, host memory is pinned and copied to beside the computation; with ``"attention"`` or
        ``"products"`` stages that are run again may keep these results there.
    codecs, host_codec
        Ways to make boundaries smaller that lose digits: see :class:`Places`.
    plan, profile : Plan, Profile or path
        Take these instead of planning, or of measuring. A file that ``save`` wrote has both, and how the plan is run. A plan is held to the
        profile it comes with, and to the budget if there is one; without a profile only its length is checked, and that it can run.
    wiring : "value", "first" or "spread"
        What the next block takes: the whole output (``nn.Sequential``), its first element if it is a tuple (otherwise), or
        each element as an argument of its own.

    margin : float
        The part of the budget that stays free for what turns out larger: 0.002 for a whole step, 0 for a region. Unless it is
        given, a whole step does without it where the allocator was seen to hand out what is asked for and no more, or where there is no
        plan with it, if steps under that plan fit.
    group : int
        So many blocks as one stage. Compiled together they are faster, and cost the CPU less; a plan has fewer choices.
    name : str
        What comes before the blocks' names in profiles, plans and errors, as where the region is in the model: ``"layers"``.
    runs : int
        How often each stage is run to be measured; the median counts.
    progress : callable
        Called as ``progress(number, name)`` when a stage is about to be measured. Stages that are alike are measured once.

    Returns
    -------
    Region
        With ``plan``, ``profile`` and ``report`` once it has run; ``remove()`` gives the blocks back.

    Raises
    ------
    UnknownName
        When there is no such strategy, with the nearest name there is.
    ArgumentError
        When another argument cannot be used.
    OtherModel
        When the plan was not made from the profile beside it.
    """
    container = layers if isinstance(layers, nn.Module) else nn.ModuleList(layers)
    places = Places(host, disk, codecs, host_codec)
    planner = Planner(
        budget,
        strategy,
        plan=plan,
        profile=profile,
        places=places,
        margin=margin,
        runs=runs,
        model=name or "region",
        progress=progress,
    )
    region = Region(container, planner, wiring, name, group)
    install_options(region.stages, options)
    return region


class Installed:
    """A model with a region in it. ``remove()`` makes it what it was.

    Attributes
    ----------
    model : nn.Module
        The model that was given.
    region : Region
        What stands in the place of its blocks.
    path : str
        Where.
    """

    def __init__(self, model: nn.Module, region: Region, path: str):
        self.model, self.region, self.path = model, region, path
        self._installed = False
        self._hook: Any = None

    def tell_when_it_returns(self) -> None:
        """From here on the region knows when the model returns."""
        self._hook = self.model.register_forward_hook(self.region.returned)

    def tell_no_more(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def install(self) -> None:
        parent, name = self._place()
        if parent is None:
            # The model itself is the row of blocks.
            self.model.__dict__["forward"] = self.region.forward
        else:
            parent._modules[name] = self.region
        self._installed = True

    def remove(self) -> nn.Module:
        """Takes the region out again. The model is given back."""
        if not self._installed:
            raise NotInstalled("the region was taken out of the model already")
        parent, name = self._place()
        if parent is None:
            del self.model.__dict__["forward"]
        else:
            parent._modules[name] = self.region.container
        self.tell_no_more()
        self._installed = False
        return self.model

    def _place(self) -> Tuple[Optional[nn.Module], str]:
        if not self.path:
            return None, ""
        *above, name = self.path.split(".")
        parent: Optional[nn.Module] = self.model
        for step in above:
            assert parent is not None, "it was found there"
            parent = parent._modules[step]
        return parent, name

    def save(self, path: Any) -> None:
        """Writes the plan to a file, with its profile and all that was found out for it. ``auto(..., plan=path)`` runs it as this
        does: nothing is measured, planned or tried again."""
        self.region.save(path)

    @property
    def plan(self) -> Any:
        """The plan. ``plan.save(path)`` keeps it for programs that plan; :meth:`save` keeps how it is run, too."""
        return self.region.plan

    @property
    def profile(self) -> Any:
        """What the plan was made from."""
        return self.region.profile

    @property
    def report(self) -> Report:
        """What the plan does, in words."""
        return self.region.report

    def __repr__(self) -> str:
        where = self.path or type(self.model).__name__
        return f"{len(self.region.container)} blocks of `{where}` under a plan\n{self.report!r}"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def auto(
    model: nn.Module,
    sample: Any,
    budget: Any = None,
    *,
    loss: Optional[Callable[[Any], torch.Tensor]] = None,
    optimizer: Optional[torch.optim.Optimizer] = None,
    whole_step: Optional[bool] = None,
    strategy: str = "optimal",
    options: Union[None, str, Sequence[Any]] = None,
    host: Any = None,
    disk: Optional[Disk] = None,
    codecs: Sequence[str] = (),
    host_codec: Optional[str] = None,
    plan: Any = None,
    profile: Any = None,
    group: int = 1,
    margin: Optional[float] = None,
    runs: int = 5,
    progress: Optional[Callable[[int, str], None]] = None,
) -> Installed:
    """Finds the blocks of a model that run in a row, measures them, plans, and puts the plan in their place.

    The model is run on ``sample`` a few times. Its weights, gradients, running statistics and random state are
    afterwards what they were.

    Parameters
    ----------
    model : nn.Module
        The model, on the device it is trained on, in the mode it is trained in.
    sample : tensor, tuple or dict
        Arguments of the model, of the shapes it is trained with.
    budget : int or str
        On CUDA, the most that a whole step may have allocated (``torch.cuda.max_memory_allocated``). On the CPU, where
        nobody counts that, the most that the region's activations may take.
    loss : callable
        Makes the loss out of the model's output. Without it, the output's ``loss``, or the output if it is a number.
    optimizer : torch.optim.Optimizer
        Its state belongs to the step; before its first step memory like it stands in for it.
    whole_step : bool
        Whether the budget is for the whole step: as said above unless given.

    The others are those of :func:`checkpointed`.

    Returns
    -------
    Installed
        Shows what was done; ``remove()`` undoes it.

    Raises
    ------
    ChainNotFound
        When no blocks run in a row.
    BudgetTooSmall
        When no plan fits, with the smallest budget that has one.
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if whole_step is None:
        whole_step = device.type == "cuda" and budget is not None
    if whole_step and device.type != "cuda":
        raise DeviceAbsent(f"the memory in use on {device} is not known, so a whole step cannot be planned there; expected CUDA")

    def run() -> Any:
        return _call(model, sample)

    generators = Generators([device])
    draws = generators.state()
    chain = find_chain(model, run, device)
    places = Places(host, disk, codecs, host_codec)
    planner = Planner(
        budget,
        strategy,
        plan=plan,
        profile=profile,
        places=places,
        margin=margin,
        runs=runs,
        model=type(model).__name__,
        progress=progress,
    )
    region = Region(chain.container, planner, chain.wiring, chain.path, group)
    installed = Installed(model, region, chain.path)
    try:
        expected = _output(model, run)
        generators.restore(draws)
        installed.install()
        _check_same(expected, _output(model, run), chain.path)
        del expected
        survey = _Survey()
        region.__dict__["planner"] = survey
        if planner.saved is not None and planner.saved.arrangement is not None and planner.saved.arrangement.late_bytes:
            installed.tell_when_it_returns()
            planner.is_told = True
        elif whole_step:
            installed.tell_when_it_returns()
        if whole_step:
            with Buffers(model).look():
                one_step(model, lambda: _loss(run(), loss), region, device)
                # The state of the optimizer, as long as steps are looked at: what it takes depends on what the allocator has.
                state = state_as_it_will_be(optimizer, device)
                watch = one_step(model, lambda: _loss(run(), loss), region, device)
            to_come = (state_to_come(optimizer, device) or 0) if state is None else 0
            accumulates = any(parameter.grad is not None for parameter in model.parameters())
            trained = {id(p): p for stage in region.stages for p in stage.parameters() if p.requires_grad}
            gradients = sum(trees.tensor_bytes(parameter) for parameter in trained.values())
            planner.surroundings = surroundings(watch, gradients, to_come, accumulates)
            planner.is_told = planner.is_tried = True
            planner.is_exact = watch.is_exact(sum(1 for _ in model.parameters()))
        region.planned.clear()
        survey.looks = True
        with Buffers(model).look():
            run()
        if survey.found is None:
            raise NotInstalled("the model needs no gradient, so there is nothing to plan; train some of its parameters")
        (call, tensors, spec), survey.found = survey.found, None
        planner.surveyed_bytes = sum(map(trees.tensor_bytes, tensors))
        region.planned.clear()
        install_options(region.stages, options)
        region.__dict__["planner"] = planner
        # As the model has it where the region is: it may turn autocast on by itself.
        with survey.autocast.again():
            planned = region._planned_for(call, tensors, spec, trees.flatten(call.extras())[0])
        # From here on only their shapes are asked for. Their memory must not count in a step that is tried.
        tensors = [without_memory(tensor, next(model.parameters(), tensor)) for tensor in tensors]
        if whole_step:
            _keep_all_if_it_fits(model, lambda: _loss(run(), loss), region, planned, planner)
            arguments = call, tensors, spec, trees.flatten(call.extras())[0]
            planned = _tried(model, lambda: _loss(run(), loss), region, planned, planner, arguments, survey.autocast)
            # Of other shapes, which come later, nothing is tried.
            planner.is_tried = False
            if planned.arrangement is None or not planned.arrangement.late_bytes:
                planner.is_told = False
                installed.tell_no_more()
            del state
        if planned.keeps_all and group > 1:
            region.__dict__["whole"] = whole_region(list(chain.container.children()), chain.wiring, options)
    except BaseException:
        if installed._installed:
            installed.remove()
        raise
    finally:
        generators.restore(draws)
    return installed


def _keep_all_if_it_fits(
    model: nn.Module, run: Callable[[], torch.Tensor], region: Region, planned: Planned, planner: Planner
) -> None:
    """Where the budget is about what keeping everything takes, that is tried: the model then runs as if there were no plan."""
    around, budget = planner.surroundings, planner.budget
    if planned.keeps_all or around is None or budget is None or planner.given_plan is not None:
        return
    everything = rekindle.plan(planned.profile, solver="store-all")
    if around.base_bytes + everything.predicted.peak_bytes > budget * NEARLY:
        return
    with Buffers(model).look():
        peak = plain_peak(model, run, region, next(model.parameters()).device) + around.to_come
    if peak <= budget:
        planned.keeps_all, planned.plan = True, everything
        planned.known["measured_peak_bytes"] = peak


def _tried(
    model: nn.Module,
    run: Callable[[], torch.Tensor],
    region: Region,
    planned: Planned,
    planner: Planner,
    arguments: Any,
    autocast: Optional[Autocast] = None,
) -> Planned:
    """The plan, once a step under it was seen to fit. What a step takes beyond its prediction is left free, and planned again."""
    around, budget = planner.surroundings, planner.budget
    device = next(model.parameters()).device
    for left in range(TRIES, -1, -1):
        usable = planner.usable()
        if planned.keeps_all or around is None or usable is None or budget is None or planner.given_plan is not None:
            break
        with Buffers(model).look():
            # The first one finds pinned memory and whatever else a first one needs.
            steps = FILLED if planner.to_the_brim else TRIED
            peak = max(peak_of(one_step(model, run, region, device)) for _ in range(steps)) + around.to_come
        planned.known["tried_peak_bytes"] = peak
        # The last one may take of the margin, which is for that, but never more than the budget.
        if peak <= (usable if left else budget):
            break
        if not left:
            raise BudgetTooSmall(
                f"no plan was found to take {rekindle.format_bytes(budget)} ({budget} bytes) or less: a step under the last of "
                f"{TRIES + 1} took {rekindle.format_bytes(peak)} ({peak} bytes)",
                hint="a larger budget, a smaller batch or a shorter sequence would do",
                budget_bytes=budget,
                smallest_bytes=peak,
            )
        planner.reserve += peak - usable
        planner.measured = planner.latest
        try:
            region.planned.clear()
            with (autocast or Autocast()).again():
                planned = region._planned_for(*arguments)
        finally:
            planner.measured = None
    return planned


#: How often a plan is made again when a step takes more than was predicted.
TRIES = 3

#: How many steps are run under each, and under one that leaves nothing free: what the allocator hands out may differ from one to the
#: next.
TRIED, FILLED = 3, 8

#: A prediction may be a little above what is then found.
NEARLY = 1.01


class _Survey:
    """Plans without knowing anything, and takes note of what the region is called with."""

    def __init__(self) -> None:
        self.looks = False
        self.autocast = Autocast()
        self.found: Optional[Tuple[Call, List[torch.Tensor], Tuple[Any, ...]]] = None

    def plan(self, region: Region, call: Call, tensors: List[torch.Tensor], spec: Tuple[Any, ...]) -> Planned:
        if self.looks:
            apart = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
            extras, shape = trees.flatten(call.extras())
            extras = [extra.detach().requires_grad_(extra.requires_grad) for extra in extras]
            self.autocast = Autocast()
            self.found = call.with_extras(trees.unflatten(extras, shape)), apart, spec
        return Planned(*schedule_by_rule("every-1", [stage.name for stage in region.stages]))


def without_memory(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, type and device that takes no memory but, where that can be, a few bytes that ``other`` has."""
    size = tensor.element_size()
    begins = other.storage_offset() * other.element_size()
    if other.device == tensor.device and other.is_contiguous() and trees.tensor_bytes(other) >= size and begins % size == 0:
        few = other.detach().view(-1)[: -(-size // other.element_size())]
        one = few.view(torch.uint8)[:size].view(tensor.dtype)
    else:
        one = tensor.new_empty(1)
    return one.expand(tensor.shape).detach().requires_grad_(tensor.requires_grad)


def _call(model: nn.Module, sample: Any) -> Any:
    if isinstance(sample, Mapping):
        return model(**sample)
    if isinstance(sample, (tuple, list)):
        return model(*sample)
    return model(sample)


def _loss(output: Any, loss: Optional[Callable[[Any], torch.Tensor]]) -> torch.Tensor:
    if loss is not None:
        return loss(output)
    found = getattr(output, "loss", None)
    if found is None:
        tensors, _ = trees.flatten(output)
        scalars = [tensor for tensor in tensors if tensor.numel() == 1 and tensor.requires_grad]
        if len(scalars) != 1:
            raise ChainNotFound(
                f"the model's output has {len(scalars)} tensors that could be the loss, expected one; give loss=, which makes "
                "it out of the output"
            )
        found = scalars[0]
    return found


def _output(model: nn.Module, run: Callable[[], Any]) -> List[torch.Tensor]:
    with torch.no_grad(), Buffers(model).look():
        return [tensor.clone() for tensor in trees.flatten(run())[0]]


def _check_same(expected: List[torch.Tensor], found: List[torch.Tensor], path: str) -> None:
    """The model with its region must do what it did: nobody may read what lies between the blocks."""
    same = len(expected) == len(found) and all(
        one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)
        for one, other in zip(expected, found)
    )
    if not same:
        raise ChainNotFound(
            f"the model gives something else when the blocks of `{path}` run as one: it reads or changes what lies between "
            "them; give those blocks that only the next one reads to rekindle.torch.checkpointed"
        )




__all__ = ["Installed", "auto", "checkpointed"]
