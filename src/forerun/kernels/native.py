"""The optional native extension: is it there, and if not, why and what is lost.

Without it models run on torch in fp32: an installation without a compiler is complete, only slower.

M rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forerun.core.device import native_problem

if TYPE_CHECKING:
    from torch import Tensor


def reason() -> str | None:
    """Why the native kernels cannot be used; None if they can."""
    return native_problem()


def available() -> bool:
    """True if the native kernels can be used."""
    return reason() is None


def summary() -> str:
    """One line for people: whether the native kernels run, or what is lost and what to do."""
    problem = reason()
    if problem is None:
        return "native kernels: yes"
    return (
        f"native kernels: no ({problem}). Everything works on torch alone, more slowly; "
        "for full speed install a C++20 compiler and install forerun again."
    )


def argmax_rows(logits: Tensor) -> Tensor:
    """The id of each row's largest value, the lowest of equal ones: fp32 (M, V) -> int64 (M,).

    Raises ValueError for another dtype or shape, and for a view that is not contiguous.
    """
    import torch

    from forerun import _native

    return torch.from_numpy(_native.argmax_rows(logits.numpy()))
