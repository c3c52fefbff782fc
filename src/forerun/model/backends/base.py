"""What a module of this folder exports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from forerun.model.config import ModelConfig
from forerun.model.model import Model
from forerun.weights.rtn import Scheme

if TYPE_CHECKING:
    from forerun.weights.codes import WeightFormat
    from forerun.weights.stored import StoredTensor

Progress = Callable[[int, int], None]
"""Called with (bytes of weights that are loaded, bytes in all), as they lie in the file."""


class BlankWeight(NamedTuple):
    """What is known of a weight before it is read, by the names of `model.config.weight_shapes`."""

    name: str
    shape: tuple[int, ...]
    format: WeightFormat
    """As it will be stored, rounding included."""
    has_bias: bool


class Backend(Protocol):
    """A module that runs models on one kind of device."""

    def unsupported(self, config: ModelConfig) -> str | None:
        """Return why this model cannot run; None if it can."""
        ...

    def absent(self, device: str) -> str | None:
        """Return why there is no such device here; None if there is. Who only plans does not ask."""
        ...

    def load(
        self,
        config: ModelConfig,
        weights: Iterable[tuple[str, StoredTensor]],
        *,
        device: str,
        num_threads: int | None,
        shares_with: Model | None,
        quant: Scheme,
        head_bits: int | None,
    ) -> Model:
        """Return the model of these weights, by the names of `model.config.weight_shapes`; a bias follows its weight.

        A model that the backend has loaded and that this one `shares_with` may lend it threads and scratch memory;
        else it has `num_threads`, by default one a usable core.
        `quant` rounds what is stored in more bits, `head_bits` the head, to 4 or 8 bits.
        Raises ConfigError for an option it does not have, LoadError for weights it cannot take.
        """
        ...

    def blank(
        self,
        config: ModelConfig,
        weights: Iterable[BlankWeight],
        *,
        device: str,
        num_threads: int | None,
        shares_with: Model | None,
        head_bits: int | None,
    ) -> Model:
        """Return the model that `load` would make without its weights: as large, but with hardly any memory touched."""
        ...
