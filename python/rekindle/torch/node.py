"""A region in PyTorch's graph: a row of nodes of one autograd function, one for each stage.

The nodes hang together by tokens, which are tensors without an element; boundaries stay with the executor. Each node hands
out the gradients of its own stage's parameters as soon as that stage has gone back. So every parameter gets its gradient
once, and when plain PyTorch would give it: what listens there, such as DistributedDataParallel, notices no difference.
"""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch

from .engine import Boundary, Engine, Gradient
from .errors import BackwardTwice, DoubleBackward
from .trees import unflatten


class Step:
    """One step of a region, between its forward pass and the end of its backward pass."""

    __slots__ = ("engine", "executor", "output", "gradient", "input_wanted", "watch")

    def __init__(self, engine: Engine, executor: Any, watch: Any = None):
        self.engine, self.executor = engine, executor
        self.output: Optional[Boundary] = None
        self.gradient: Gradient = []
        self.input_wanted: List[bool] = []
        # Told when the halves begin and end, while a step is measured.
        self.watch = watch

    def run(self, tensors: List[torch.Tensor], spec: Tuple[Any, ...]) -> Any:
        """The forward half, and the nodes for the rest."""
        engine, watch = self.engine, self.watch
        self.input_wanted = [tensor.requires_grad for tensor in tensors]
        boundary = Boundary([tensor.detach() for tensor in tensors], spec, self.input_wanted)
        boundary.versions = [tensor._version for tensor in tensors]
        if watch is not None:
            watch("forward begins")
        output = self.executor.forward(engine, boundary)
        engine.draws.pause()
        engine.know_all()
        self.output = output
        out_spec, count = output.spec, len(output.tensors)
        del boundary, output
        tokens = [tensor for tensor in tensors if tensor.requires_grad] + engine.extra_origins
        for index in range(len(engine.stage_list)):
            tokens = _apply(self, index, *tokens, *self.parameters_of_node(index))
        if watch is not None:
            watch("forward ends")
        return unflatten(list(tokens[:count]), out_spec)

    def parameters_of_node(self, index: int) -> List[torch.Tensor]:
        """The parameters whose gradients are complete when this stage has gone back."""
        shared = self.engine.shared
        if not shared:
            return self.engine.trainable[index]
        return [p for p in self.engine.trainable[index] if shared.get(id(p), index) == index]

    def go_back(self, index: int, gradients: Tuple[Any, ...]) -> Gradient:
        """The gradients of a node's inputs."""
        engine, watch = self.engine, self.watch
        if index == len(engine.stage_list) - 1:
            if watch is not None:
                watch("backward begins")
            self.gradient = list(gradients)
        incoming, self.gradient = self.gradient, []
        outgoing = self.executor.backward(engine, incoming)
        own = engine.own_gradients[index] or []
        engine.own_gradients[index] = None
        if engine.shared:
            own = self._with_shared(index, own)
        if index > 0:
            self.gradient = outgoing
            # The token has none; the node before runs all the same.
            return [None, *own]
        if watch is not None:
            watch("backward ends")
        of_input = [gradient for gradient, wanted in zip(outgoing, self.input_wanted) if wanted]
        of_extras = [engine.carried.pop(id(leaf), None) for leaf in engine.extra_leaves]
        return [*of_input, *of_extras, *own]

    def _with_shared(self, index: int, own: Gradient) -> Gradient:
        shared = self.engine.shared
        complete: Gradient = []
        engine = self.engine
        for parameter, leaf, gradient in zip(engine.trainable[index], engine.graph_leaves[index], own):
            first = shared.get(id(parameter))
            if first is None:
                complete.append(gradient)
            elif first == index:
                complete.append(engine.carried.pop(id(leaf), None))
        return complete


class StageNode(torch.autograd.Function):
    """One stage of a region."""

    @staticmethod
    def forward(ctx: Any, step: Step, index: int, *inputs: torch.Tensor) -> Any:
        ctx.step, ctx.index = step, index
        ctx.set_materialize_grads(False)
        boundary = step.output
        assert boundary is not None, "the last node takes it"
        if index < len(step.engine.stage_list) - 1:
            # On the region's device, so that its backward runs on that device's thread and stream.
            return (boundary.tensors[0].new_empty(0, dtype=torch.float32),)
        step.output = None
        # Apart from what the executor may still hold, which must not know of this graph.
        tensors = tuple(tensor.detach() for tensor in boundary.tensors)
        ctx.mark_non_differentiable(*[tensor for tensor, wanted in zip(tensors, boundary.wanted) if not wanted])
        return tensors

    @staticmethod
    def backward(ctx: Any, *gradients: Optional[torch.Tensor]) -> Any:
        if torch.is_grad_enabled():
            raise DoubleBackward()
        step, ctx.step = ctx.step, None
        if step is None:
            raise BackwardTwice()
        return (None, None, *step.go_back(ctx.index, gradients))


# Without the wrapper that looks for functorch's transforms, in which a region cannot run anyway.
_apply = super(torch.autograd.Function, StageNode).apply
