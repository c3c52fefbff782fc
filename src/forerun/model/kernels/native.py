"""The optional native extension: is it there, and if not, why and what to do. Without it no weights are read."""

from __future__ import annotations

import logging
import os
import platform
from functools import cache

from forerun.core.errors import ConfigError, LoadError, unknown
from forerun.core.native import native_problem

_log = logging.getLogger(__name__)

ISA = "FORERUN_ISA"
"""Variable of the environment that names an instruction set, in place of the best that is timed."""

REMEDY = "install a wheel, or a C++20 compiler (g++ 11, clang 14 or newer) and then forerun again"
"""What to do about it, for messages."""


def reason() -> str | None:
    """Return why the native kernels cannot be used; None if they can."""
    return native_problem()


def available() -> bool:
    """Return True if the native kernels can be used."""
    return reason() is None


def require() -> None:
    """Raise LoadError if the native kernels cannot be used: why, and what to do or take instead."""
    if problem := reason():
        raise LoadError(
            f"this drafter needs the native kernels, and they are not there ({problem}): {REMEDY}; "
            "none and lookahead draft without them"
        )


def named_isa() -> str:
    """Return the instruction set that the environment names, or auto. Raises ConfigError for one that cannot run."""
    from forerun import _native

    given = os.environ.get(ISA, "auto")
    if given != "auto" and given not in (runnable := _native.runnable_isas()):
        raise ConfigError(unknown(f"instruction set in {ISA}", given, ["auto", *runnable]))
    return given


@cache
def note_choice(isa: str) -> None:
    """Log a warning, once, if the kernels that were chosen by themselves are the portable ones, and why."""
    from forerun import _native

    if isa == "portable":
        _log.warning(portable_reason(platform.machine(), _native.runnable_isas()))


def portable_reason(machine: str, runnable: list[str]) -> str:
    """Say why the portable kernels run on such a machine, of all that its processor could run."""
    faster = [isa for isa in runnable if isa != "portable"]
    if faster:
        why = f"{', '.join(faster)} did not pass the check at the start; please report it"
    elif machine in ("aarch64", "arm64", "ARM64"):
        why = "this processor has no dot products (asimddp), which NEON's need"
    elif machine in ("x86_64", "AMD64"):
        why = "this processor has no AVX2 with FMA and F16C"
    else:
        why = f"there are no others for {machine}"
    return f"portable kernels run, with the same results but several times slower: {why}"
