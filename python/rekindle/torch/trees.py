"""Boundaries are trees of tensors: taken apart into a list, and put together again."""

from __future__ import annotations

from typing import Any, Callable, List, Tuple

import torch

# A spec is a tuple (kind, ...). A value that is one tensor, as most boundaries are, has this one.
TENSOR = ("tensor",)


def flatten(value: Any) -> Tuple[List[torch.Tensor], Tuple[Any, ...]]:
    """The tensors of a value, in order, and what is needed to put it together again."""
    if isinstance(value, torch.Tensor):
        return [value], TENSOR
    tensors: List[torch.Tensor] = []
    return tensors, _take_apart(value, tensors)


def _take_apart(value: Any, tensors: List[torch.Tensor]) -> Tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TENSOR
    if isinstance(value, dict):
        return ("dict", type(value), list(value), [_take_apart(item, tensors) for item in value.values()])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ("named", type(value), [_take_apart(item, tensors) for item in value])
    if isinstance(value, (tuple, list)):
        return ("row", type(value), [_take_apart(item, tensors) for item in value])
    return ("constant", value)


def unflatten(tensors: List[torch.Tensor], spec: Tuple[Any, ...]) -> Any:
    """The value that :func:`flatten` took apart, with these tensors in place of its own."""
    if spec is TENSOR:
        return tensors[0]
    return _put_together(iter(tensors), spec)


def _put_together(tensors: Any, spec: Tuple[Any, ...]) -> Any:
    kind = spec[0]
    if kind == "tensor":
        return next(tensors)
    if kind == "constant":
        return spec[1]
    if kind == "dict":
        items = {key: _put_together(tensors, part) for key, part in zip(spec[2], spec[3])}
        if spec[1] is dict:
            return items
        try:
            return spec[1](items)
        except TypeError:
            # Such as the outputs of Hugging Face's models: dictionaries that are dataclasses, too.
            return spec[1](**items)
    parts = [_put_together(tensors, part) for part in spec[2]]
    if kind == "named":
        return spec[1](*parts)
    return parts if spec[1] is list else spec[1](parts)


def over(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same value with every tensor changed."""
    tensors, spec = flatten(value)
    return unflatten([change(tensor) for tensor in tensors], spec)


def describe(tensor: torch.Tensor) -> Tuple[Tuple[Any, ...], torch.dtype]:
    """What must be the same when a stage is run again."""
    return tuple(tensor.shape), tensor.dtype


def in_words(shape_and_dtype: Tuple[Tuple[Any, ...], torch.dtype]) -> str:
    """A tensor's shape and type for people: ``float32[2, 3]``."""
    shape, dtype = shape_and_dtype
    return f"{str(dtype).replace('torch.', '')}{list(shape)}"


def tensor_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def storage_of(tensor: torch.Tensor) -> Any:
    """The memory a tensor lies in; the same for its views."""
    typed = getattr(tensor, "untyped_storage", None)
    return typed() if typed is not None else tensor.storage()


def storage_key(tensor: torch.Tensor) -> int:
    """A number that tells memory apart, while it lives."""
    return storage_of(tensor).data_ptr()


def storage_bytes(tensor: torch.Tensor) -> int:
    storage = storage_of(tensor)
    return storage.nbytes()
