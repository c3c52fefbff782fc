"""Whether the native kernels, `forerun._native`, can be used here."""

from __future__ import annotations

import importlib


def native_problem() -> str | None:
    """Return why the native kernels cannot be used; None if they can."""
    try:
        importlib.import_module("forerun._native")
    except ModuleNotFoundError:
        return "not built"
    except ImportError as error:
        return f"not loadable: {error}"
    return None
