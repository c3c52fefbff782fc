"""The optional native extension: is it there, and if not, why and what is lost.

Without it models run on torch in fp32: an installation without a compiler is complete, only slower.
"""

from __future__ import annotations

from typing import TypeVar

from forerun.core.device import native_problem

T = TypeVar("T")

REMEDY = "install a C++20 compiler (g++ 11, clang 14 or newer), then install forerun again"
"""What to do about it, for messages."""


def reason() -> str | None:
    """Return why the native kernels cannot be used; None if they can."""
    return native_problem()


def available() -> bool:
    """Return True if the native kernels can be used."""
    return reason() is None


def native_or_reference(oracle: type[T]) -> type[T]:
    """Return the native class of that name where it was built, which answers as its oracle does; else the oracle."""
    if not available():
        return oracle
    from forerun import _native

    native: type[T] = getattr(_native, oracle.__name__)
    return native


def summary() -> str:
    """Describe in one line whether the native kernels run, or what is lost and what to do."""
    problem = reason()
    if problem is None:
        return "native kernels: yes"
    return (
        f"native kernels: no ({problem}). Everything works on torch alone, more slowly; "
        f"for full speed {REMEDY}."
    )
