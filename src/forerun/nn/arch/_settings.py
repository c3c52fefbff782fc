"""A checkpoint's metadata, read with complaints a user understands: what is missing, and what the decoder cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forerun.core.errors import LoadError
from forerun.nn.config import Activation

if TYPE_CHECKING:
    from forerun.formats.checkpoint import Checkpoint


class Settings:
    """The checkpoint's metadata with complaints instead of KeyErrors; GGUF keys without the architecture in front."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._prefix = f"{checkpoint.architecture}." if checkpoint.kind == "gguf" else ""

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default if it is absent or null."""
        value = self.checkpoint.config.get(self._prefix + key)
        return default if value is None else value

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise LoadError(f"the model's metadata lacks '{self._prefix}{key}'")
        return value

    def refuse(self, key: str, supported: object) -> None:
        """Raise LoadError if `key` is set to anything but what the decoder computes."""
        if self.get(key, supported) != supported:
            raise LoadError(
                f"{self.checkpoint.architecture} with {key}={self[key]!r} is not supported: "
                f"only {supported!r} is"
            )

    def has_head(self) -> bool:
        """True if the head has a tensor of its own."""
        name = "lm_head.weight" if self.checkpoint.kind == "hf" else "output.weight"
        return name in self.checkpoint.names()

    def is_tied(self) -> bool:
        """True if the head is the embedding: said so, or no head in the file."""
        return self.get("tie_word_embeddings") is True or not self.has_head()

    def activation(self, key: str) -> Activation:
        """The activation named by a Hugging Face config."""
        name = self[key]
        if name not in _ACTIVATIONS:
            raise LoadError(f"activation '{name}' is not supported: {', '.join(_ACTIVATIONS)} are")
        return _ACTIVATIONS[name]


_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def window_from_hf(settings: Settings) -> int | None:
    """The sliding window if all layers have one, None if no layer has; LoadError for a mixture."""
    window = settings.get("sliding_window")
    kinds = set(settings.get("layer_types", ()))
    if window is None or settings.get("use_sliding_window") is False or kinds == {"full_attention"}:
        return None
    depth = settings["num_hidden_layers"]
    full_below = settings.get("max_window_layers", 0) if not kinds else 0
    if len(kinds) > 1 or 0 < full_below < depth:
        raise LoadError("a sliding window in some layers only is not supported")
    return None if full_below else int(window)
