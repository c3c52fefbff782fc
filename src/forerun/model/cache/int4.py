"""Which heads can be kept as int4: those of whole groups, as wide as the kernels unpack beside each other."""

from __future__ import annotations

from forerun.core.config import Precision
from forerun.core.errors import ConfigError

GROUP = 32
"""Dimensions of a key, or of values as int4, that share a scale."""
_WIDEST = 512
"""Dimensions of a head whose values are int4, at most."""


def fits_int4(head_dim: int, value_dim: int | None = None) -> bool:
    """Return whether heads of this size can be kept as int4; their values are as wide unless `value_dim` is given."""
    value_dim = head_dim if value_dim is None else value_dim
    return head_dim % GROUP == 0 and value_dim % GROUP == 0 and value_dim <= _WIDEST


def check_head_dim(kv: Precision, head_dim: int, value_dim: int | None = None) -> None:
    """Raise ConfigError for int4 and a head size that int4 does not suit."""
    if kv in ("int4", "k8v4") and not fits_int4(head_dim, value_dim):
        what = "int4 values" if kv == "k8v4" else "int4 keys and values"
        raise ConfigError(
            f"{what} need heads of a multiple of {GROUP} dimensions, {_WIDEST} at most, this model has "
            f"{head_dim}: take int8"
        )
