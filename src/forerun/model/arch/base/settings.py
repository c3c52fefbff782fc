"""A checkpoint's metadata, read with checks: each number has a type and a range, and errors name its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forerun.core.errors import LoadError, short_repr
from forerun.model.config import WIDTH_UNIT, Activation

if TYPE_CHECKING:
    from forerun.weights.checkpoint import Checkpoint

_SIZES: tuple[tuple[str, str, str, int], ...] = (
    ("vocab_size", "vocab_size", "vocab_size", 1 << 24),
    ("hidden_size", "hidden_size", "embedding_length", 1 << 18),
    ("intermediate_size", "intermediate_size", "feed_forward_length", 1 << 20),
    ("num_layers", "num_hidden_layers", "block_count", 1 << 12),
    ("num_heads", "num_attention_heads", "attention.head_count", 1 << 12),
    ("num_kv_heads", "num_key_value_heads", "attention.head_count_kv", 1 << 12),
    ("head_dim", "head_dim", "attention.key_length", 1 << 12),
    ("max_position", "max_position_embeddings", "context_length", 1 << 28),
)
"""Sizes of `ModelConfig`, the keys of Hugging Face and of GGUF, and sane upper bounds.

They are well above every model there is, and low enough for 32-bit products of two of them.
"""
_WIDEST = (1 << 31) - 1
"""A sliding window at most."""
_LAYER_TYPES = ("full_attention", "sliding_attention")
_LARGEST = {field: largest for field, _, _, largest in _SIZES}
LARGEST: Mapping[str, int] = {key: largest for _, hf, gguf, largest in _SIZES for key in (hf, gguf)}
"""The upper bounds of sizes, by the keys of Hugging Face and of GGUF."""


class Settings:
    """The metadata of a checkpoint; GGUF keys are given without the architecture in front.

    `keys` say how the file spells a size of `ModelConfig`. All methods raise LoadError for a value
    that is missing, of another type or out of range.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.is_gguf = checkpoint.kind == "gguf"
        self.prefix = f"{checkpoint.architecture}." if self.is_gguf else ""
        self.keys = {field: gguf if self.is_gguf else hf for field, hf, gguf, _ in _SIZES}
        self.fixed: dict[str, int] = {}
        """Sizes that a family has read by itself, as they differ between layers."""
        self.assumed: Mapping[str, Any] = {}
        """What holds where a Hugging Face config is silent: transformers writes no value that is the family's usual."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of whatever type, or the default if it is absent or null."""
        config = self.checkpoint.config
        if not self.is_gguf and key not in config:  # null is said, too
            return self.assumed.get(key, default)
        value = config.get(self.prefix + key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, low: int = 1, high: int) -> int:
        """Return a whole number from `low` to `high`. Without a default the key must be there."""
        value = self._present(key, default)
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]  # all layers alike, as some writers say it
        if isinstance(value, list):
            raise LoadError(f"layers that differ in '{self.prefix}{key}' are not supported")
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(key, value, f"a whole number from {low} to {high}")
        return value

    def by_layer(self, field: str) -> list[int]:
        """Return a size of each layer, which the file may give as one number or as a list."""
        key, num_layers = self.keys[field], self.size("num_layers")
        values = self.get(key)
        if not isinstance(values, list):
            return [self.integer(key, high=_LARGEST[field])] * num_layers
        if len(values) != num_layers + self.num_heads_inside:
            raise self._wrong(key, values, f"a list of {num_layers} numbers")
        values = values[:num_layers]
        for value in values:
            if (
                not isinstance(value, int)
                or isinstance(value, bool)
                or not 0 < value <= _LARGEST[field]
            ):
                raise self._wrong(key, values, f"whole numbers from 1 to {_LARGEST[field]}")
        return values

    def number(
        self, key: str, default: float | None = None, *, low: float = 1e-6, high: float = 1e6
    ) -> float:
        """Return a number from `low` to `high`. Without a default the key must be there."""
        return number_in(self.prefix + key, self._present(key, default), low, high)

    def flag(self, key: str, default: bool) -> bool:
        """Read a boolean. Raises LoadError for anything else."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text. Without a default the key must be there."""
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def reject(self, key: str, supported: object) -> None:
        """Raise LoadError if `key` is set to anything but what the decoder computes."""
        value = self.get(key, supported)
        if value != supported:
            raise LoadError(
                f"{self.checkpoint.architecture} with {key}={short_repr(value)} is not supported: "
                f"only {supported!r} is"
            )

    def size(self, field: str, default: int | None = None) -> int:
        """Return a size of `ModelConfig`. A GGUF's vocabulary is the rows of its embedding, padding included."""
        if field in self.fixed:
            return self.fixed[field]
        if self.is_gguf and field == "vocab_size":
            return self.checkpoint.tensor("token_embd.weight").shape[0]
        value = self.integer(self.keys[field], default, high=_LARGEST[field])
        return value - self.num_heads_inside if field == "num_layers" else value

    @property
    def num_heads_inside(self) -> int:
        """Return how many blocks of a GGUF file are heads that draft, after the model's own (`nextn`)."""
        if not self.is_gguf:
            return 0
        most = self.integer(self.keys["num_layers"], high=_LARGEST["num_layers"]) - 1
        return self.integer("nextn_predict_layers", 0, low=0, high=most)

    def sizes(
        self, *, default_kv_heads: int | None = None, default_mlp_ratio: int = 0
    ) -> dict[str, Any]:
        """Return all sizes, which fit each other.

        Without a key there are as many kv heads as heads, or `default_kv_heads`; a head is a part of
        the hidden size; the MLP is `default_mlp_ratio` times the hidden size, if not 0.
        """
        width, num_heads = self.size("hidden_size"), self.size("num_heads")
        num_kv_heads = self.size("num_kv_heads", default_kv_heads or num_heads)
        if num_heads % num_kv_heads:
            raise LoadError(
                f"{num_heads} query heads cannot share {num_kv_heads} kv heads evenly "
                f"({self.described('num_heads')}, {self.described('num_kv_heads')})"
            )
        if self.get(self.keys["head_dim"]) is None and width % num_heads:
            raise LoadError(
                f"{num_heads} heads cannot divide a hidden size of {width} evenly "
                f"({self.described('num_heads')}, {self.described('hidden_size')})"
            )
        defaults = {
            "num_kv_heads": num_kv_heads,
            "intermediate_size": default_mlp_ratio * width or None,
            "head_dim": max(width // num_heads, 1),
        }
        sizes = {field: self.size(field, defaults.get(field)) for field in _LARGEST}
        for field in ("hidden_size", "intermediate_size", "head_dim"):
            if sizes[field] % WIDTH_UNIT:
                name = {"head_dim": "head dimension"}.get(field, field.replace("_", " "))
                raise LoadError(
                    f"the {name} must be a multiple of {WIDTH_UNIT}, but is {sizes[field]}"
                    f" ('{self.prefix}{self.keys[field]}')"
                )
        return sizes

    def described(self, field: str) -> str:
        """Return the file's key of a size and its value, for messages."""
        key = self.keys[field]
        value = self.get(key)
        return f"'{self.prefix}{key}' is {'not given' if value is None else short_repr(value)}"

    def is_tied(self) -> bool:
        """Return whether the head is the embedding, by the metadata or as the file has no head."""
        head = "output.weight" if self.is_gguf else "lm_head.weight"
        return self.flag("tie_word_embeddings", False) or head not in self.checkpoint.names()

    def activation(self, key: str) -> Activation:
        """Return the activation named by a Hugging Face config."""
        name = self.text(key)
        if name not in _ACTIVATIONS:
            raise LoadError(
                f"activation {short_repr(name)} is not supported: {', '.join(_ACTIVATIONS)} are"
            )
        return _ACTIVATIONS[name]

    def windows(self, period: int = 0) -> tuple[int | None, ...]:
        """Return each layer's sliding window, None for those without.

        Where the file does not say which have one, all but every `period`th have; 0 is all.
        """
        num_layers = self.size("num_layers")
        if self.is_gguf:
            window = self.integer("attention.sliding_window", 0, low=0, high=_WIDEST) or None
            key = "attention.sliding_window_pattern"
        else:
            window = self._hf_window()
            key = "sliding_window_pattern"
            if self.get("layer_types") is not None:
                sliding = [kind == "sliding_attention" for kind in self._layer_types(num_layers)]
                return tuple(window if slides else None for slides in sliding)
        pattern = self.get(key, period)
        if isinstance(pattern, list):
            pattern = pattern[: max(num_layers, len(pattern) - self.num_heads_inside)]
            if len(pattern) != num_layers or not all(isinstance(is_, bool) for is_ in pattern):
                raise self._wrong(key, pattern, f"a whole number, or {num_layers} booleans")
            return tuple(window if slides else None for slides in pattern)
        period = self.integer(key, period, low=0, high=1 << 31)
        first = 0
        if not self.is_gguf and period == 0:
            first = self.integer("max_window_layers", 0, low=0, high=1 << 31)
        return tuple(
            window if i >= first and (period == 0 or (i + 1) % period) else None
            for i in range(num_layers)
        )

    def _hf_window(self) -> int | None:
        if self.get("sliding_window") is None or not self.flag("use_sliding_window", True):
            return None
        return self.integer("sliding_window", high=_WIDEST)

    def _layer_types(self, num_layers: int) -> list[str]:
        """Return what kind of attention each layer has. Raises LoadError for kinds that are not supported."""
        kinds = self.get("layer_types")
        if not isinstance(kinds, list) or len(kinds) != num_layers:
            raise self._wrong("layer_types", kinds, f"a list of {num_layers} texts")
        for kind in kinds:
            if kind not in _LAYER_TYPES:
                raise LoadError(
                    f"layers of type {short_repr(kind)} are not supported: {' and '.join(_LAYER_TYPES)} are"
                )
        return kinds

    def width(self, key: str, *, high: int) -> int:
        """Return a size that must be a multiple of WIDTH_UNIT."""
        value = self.integer(key, high=high)
        if value % WIDTH_UNIT:
            raise self._wrong(key, value, f"a multiple of {WIDTH_UNIT}")
        return value

    def _present(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise LoadError(f"the model's metadata lacks '{self.prefix}{key}'")
        return value

    def _wrong(self, key: str, value: object, allowed: str) -> LoadError:
        return LoadError(f"'{self.prefix}{key}' is {short_repr(value)}, but must be {allowed}")


def number_in(key: str, value: object, low: float, high: float) -> float:
    """Return the value as a float. Raises LoadError if it is not a number from `low` to `high`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:  # type: ignore[operator]
        raise LoadError(
            f"'{key}' is {short_repr(value)}, but must be a number from {low:g} to {high:g}"
        )
    return float(value)  # type: ignore[arg-type]


_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
}
