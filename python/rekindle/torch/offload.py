"""Where boundaries may lie besides the device, for a plan to choose from."""

from __future__ import annotations

import ctypes
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch

from rekindle import _core
from rekindle.errors import ArgumentError

from .arrange import Arrangement
from .budgets import in_bytes
from .codecs import codec_named
from .keepsakes import Keepsakes
from .parcels import AsBytes, ByNumber, Tickets

Disk = Union[str, "os.PathLike[str]", Tuple[Union[str, "os.PathLike[str]"], Any]]

#: What a disk may take when nobody says.
DISK_LIMIT = 64 << 30


class Places:
    """Host memory, a disk and codecs. Each is measured when a plan is made, so that the plan uses it where that pays.

    Moving a boundary changes no bit of it. Codecs that lose digits are used only when they are named: `codecs` on a device
    whose tensors stay there in fewer bytes, `host_codec` on the way to host memory.
    """

    def __init__(
        self,
        host: Any = None,
        disk: Optional[Disk] = None,
        codecs: Sequence[str] = (),
        host_codec: Optional[str] = None,
    ):
        self.host = in_bytes(host)
        self.disk: Optional[Tuple[str, int]] = None
        if disk is not None:
            folder, limit = disk if isinstance(disk, tuple) else (disk, DISK_LIMIT)
            self.disk = os.fspath(folder), in_bytes(limit) or 0
        self.codecs = list(codecs)
        self.host_codec = host_codec
        self.storage: Optional[Any] = None
        self.tickets: Optional[Tickets] = None
        #: Pinned memory, once a plan for CUDA uses it.
        self.pinned: Optional[Any] = None

    def __bool__(self) -> bool:
        return self.host is not None or self.disk is not None or bool(self.codecs)

    def open(self, profile: Dict[str, Any], like: torch.Tensor) -> None:
        """Makes the places ready for boundaries like those of a profile, and tells the profile of them."""
        device = like.device
        sizes = sorted({profile["input_bytes"], *(stage["output_bytes"] for stage in profile["stages"])} - {0})
        largest = max(sizes, default=1)
        self.storage = _core.Storage()
        tiers: List[Dict[str, Any]] = []
        codecs: List[Dict[str, Any]] = []
        on_cuda = device.type == "cuda"
        if on_cuda and self.host is not None and self.disk is not None:
            raise ArgumentError("host memory and a disk were given for CUDA, expected one of them", argument="disk")
        if on_cuda and self.codecs:
            raise ArgumentError(
                "codecs for boundaries that stay on a CUDA device were given, expected none; give host_codec for those that "
                "go to host memory",
                argument="codecs",
            )
        if self.host_codec is not None and not on_cuda:
            raise ArgumentError("host_codec is for CUDA devices; give codecs instead", argument="host_codec")
        if self.host is not None and on_cuda:
            tiers.append(self._pinned(self.host, like, largest))
        elif self.host is not None:
            speed = self.storage.add_host("host", self.host, [min(largest, self.host)])
            tiers.append(_tier("host", self.host, speed))
        if self.disk is not None:
            folder, limit = self.disk
            speed = self.storage.add_disk("disk", folder, limit, [min(largest, limit)])
            tiers.append(_tier("disk", limit, speed))
        for name in self.codecs:
            sample = _some_floats(max(min(largest, 1 << 22) // 4, 64))
            per_kibibyte, compress, restore = self.storage.add_codec(name, sample)
            codecs.append(
                {
                    "name": name,
                    "bytes_per_kibibyte": per_kibibyte,
                    "compress_bytes_per_second": compress,
                    "restore_bytes_per_second": restore,
                }
            )
        if tiers:
            profile["tiers"] = tiers
        if codecs:
            profile["codecs"] = codecs

    def _pinned(self, limit: int, like: torch.Tensor, largest: int) -> Dict[str, Any]:
        from .pinned import PinnedHost, measure_pinned

        self.tickets = Tickets()
        codec = codec_named(self.host_codec)
        host = PinnedHost(limit, like.device, self.tickets, codec)
        assert self.storage is not None
        self.pinned = host
        self.storage.add_python("host", host.store)
        write, read = measure_pinned(like.device, largest)
        if codec is not None:
            # Fewer bytes travel; the planner counts those of the boundary.
            ratio = codec.ratio(like.dtype)
            write, read = int(write / ratio), int(read / ratio)
        return _tier("host", limit, (write, read))

    def takes_keepsakes(self, device: torch.device) -> bool:
        """Whether there is host memory beside the device that changes nothing on the way."""
        return self.host is not None and device.type == "cuda" and self.host_codec is None

    def keepsakes(self, arrangement: Arrangement) -> Keepsakes:
        """What stages keep of their first runs in one step."""
        assert self.pinned is not None and self.tickets is not None
        return Keepsakes(arrangement, self.pinned.store(), self.tickets)

    def parcels(self) -> Any:
        """How boundaries travel in one step."""
        return ByNumber(self.tickets) if self.tickets is not None else AsBytes()


def _some_floats(count: int) -> bytes:
    """Numbers like those of a boundary, drawn without touching the user's generator."""
    floats = torch.randn(count, generator=torch.Generator().manual_seed(0))
    return ctypes.string_at(floats.data_ptr(), 4 * count)


def _tier(name: str, limit: int, speed: Tuple[int, int]) -> Dict[str, Any]:
    return {
        "name": name,
        "capacity_bytes": limit,
        "write_bytes_per_second": speed[0],
        "read_bytes_per_second": speed[1],
    }
