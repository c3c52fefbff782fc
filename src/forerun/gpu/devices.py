"""The cards that are here."""

from __future__ import annotations

from collections.abc import Callable

import torch

CAPABILITY = (8, 0)
"""The oldest cards that Triton compiles the kernels for (Ampere)."""


def absent(name: str) -> str | None:
    """Return why there is no such card here, or none that is new enough; None if there is."""
    index, count = int(name.partition(":")[2] or 0), torch.cuda.device_count()
    if torch.version.hip is not None or index >= count:
        return f"torch {torch.__version__} sees {count} CUDA devices; use --device cpu"
    capability = torch.cuda.get_device_capability(index)
    if capability >= CAPABILITY:
        return None
    needed, found = (".".join(map(str, each)) for each in (CAPABILITY, capability))
    return f"{torch.cuda.get_device_name(index)} has compute capability {found}, {needed} is needed; use --device cpu"


def free_nbytes(name: str) -> int:
    """Return the memory that is free on a card."""
    return int(torch.cuda.mem_get_info(name)[0])


def reader(nbytes: int, device: torch.device) -> Callable[[], object]:
    """Make what reads that many bytes of a device's memory, and waits for it."""
    numbers = torch.ones(nbytes // 8, dtype=torch.int64, device=device)
    return lambda: numbers.max().item()
