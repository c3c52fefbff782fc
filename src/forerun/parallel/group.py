"""The processes that hold one model: who they are, whether they fit together, and what they exchange.

torchrun starts them and torch.distributed (gloo) brings them together. On one machine partial sums then go through
shared memory, which takes microseconds; between machines gloo gathers them. Both give every rank all parts, which it
adds in the order of ranks: a ring would add them in another order on each.
"""

from __future__ import annotations

import atexit
import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

import forerun
from forerun.core.errors import ConfigError, ForerunError
from forerun.parallel.launch import Launch
from forerun.parallel.link import Address, Follower, Leader, Listener
from forerun.system.opened import OpenedFile, digest

if TYPE_CHECKING:
    from forerun import _native

SHARED = Path("/dev/shm")
"""Where Linux keeps files in memory; elsewhere a temporary file is mapped."""

Floats = NDArray[np.float32]


class RankGroup:
    """The ranks of one model. Rank 0 has a `Leader`, the others a `Follower`."""

    def __init__(
        self, launch: Launch, link: Leader | Follower, ranks: _native.Ranks, num_floats: int
    ) -> None:
        self.rank, self.size, self.num_floats = launch.rank, launch.size, num_floats
        self.link, self.ranks = link, ranks

    @property
    def leader(self) -> Leader:
        """The link of rank 0."""
        assert isinstance(self.link, Leader)
        return self.link

    @property
    def follower(self) -> Follower:
        """The link of another rank."""
        assert isinstance(self.link, Follower)
        return self.link

    def exchange(self, own: Floats) -> Floats:
        """Give every rank the numbers (n,) of all, (ranks, n); n must be the same everywhere."""
        every = np.empty((self.size, own.size), np.float32)
        self.ranks.exchange(np.ascontiguousarray(own.reshape(-1)), every)
        return every


def connect(
    launch: Launch, opened: Sequence[OpenedFile], options: Mapping[str, object]
) -> Leader | Follower:
    """Connect to the other ranks, which hold parts of the same model, whose files were `opened`.

    Raises ConfigError where they do not fit together.
    """
    _agree(launch, {"forerun": forerun.__version__, "files": digest(opened), **options})
    is_local = launch.local_size == launch.size
    # On one machine the loopback address is enough, and no other machine can connect to it.
    listener = (
        Listener("127.0.0.1" if is_local else os.environ["MASTER_ADDR"])
        if launch.rank == 0
        else None
    )
    address = Address(*_broadcast(None if listener is None else tuple(listener.address)))
    if listener is None:
        return Follower(address, launch.rank)
    leader = listener.accept(launch.size)
    atexit.register(leader.end)
    return leader


def join(launch: Launch, link: Leader | Follower, num_floats: int) -> RankGroup:
    """Make the group of connected ranks, which exchange partial sums of at most `num_floats` numbers."""
    from forerun import _native

    is_local = launch.local_size == launch.size
    nbytes = _native.Ranks.nbytes(launch.size, num_floats)
    memory, gather = _shared(launch, nbytes) if is_local else (np.zeros(nbytes, np.uint8), None)
    if not is_local:
        gather = _gather(launch, link)
    ranks = _native.Ranks(launch.rank, launch.size, num_floats, memory, gather)
    return RankGroup(launch, link, ranks, num_floats)


def report_failure(launch: Launch, error: ForerunError) -> None:
    """Tell the other ranks why this one cannot load its part. Raises ConfigError on all of them."""
    _agree(launch, {"error": str(error)})


def _agree(launch: Launch, facts: dict[str, object]) -> None:
    """Start torch.distributed; raise ConfigError on all ranks if one failed or has other facts than rank 0."""
    every: list[dict[str, object]] = [{}] * launch.size
    try:
        distributed.init_process_group("gloo")
        distributed.all_gather_object(every, facts)
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"the ranks cannot meet: {str(error).splitlines()[0]}") from error
    for rank, other in enumerate(every):
        if "error" in other:
            raise ConfigError(f"rank {rank}: {other['error']}")
    for rank, other in enumerate(every):
        for name, value in every[0].items():
            if other.get(name) != value:
                raise ConfigError(
                    f"rank {rank} has {name} {other.get(name)}, rank 0 has {value}: start all ranks with the same "
                    "version, files and options"
                )


def _broadcast(value: object) -> tuple:
    """Return the value that rank 0 has."""
    values = [value]
    distributed.broadcast_object_list(values, src=0)
    return values[0]  # type: ignore[return-value]


def _shared(launch: Launch, nbytes: int) -> tuple[NDArray[np.uint8], None]:
    """Map memory that all ranks of this machine share; its file is gone when all have it."""
    path = ""
    if launch.rank == 0:
        folder = SHARED if SHARED.is_dir() else None
        file, path = tempfile.mkstemp(prefix="forerun-ranks-", dir=folder)
        os.truncate(file, nbytes)
        os.close(file)
    (path,) = _broadcast((path,))
    with open(path, "r+b") as shared:
        memory = np.frombuffer(mmap.mmap(shared.fileno(), nbytes), np.uint8)
    distributed.barrier()
    if launch.rank == 0:
        os.unlink(path)
    distributed.destroy_process_group()
    return memory, None


def _gather(launch: Launch, link: Leader | Follower) -> Callable[[Floats, int], None]:
    """Return what brings all ranks' numbers to each, in place."""

    def gather(parts: Floats, count: int) -> None:
        try:
            every = [torch.from_numpy(part[:count]) for part in parts]
            distributed.all_gather(every, every[launch.rank].clone())
        except (
            Exception
        ) as error:  # a kernel's thread calls this: there is no Python caller to raise to
            link.fail(f"gloo: {str(error).splitlines()[0]}")

    return gather
