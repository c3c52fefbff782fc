"""The text half of a model that also sees or hears: its tensors by the names of a text model, and its own config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

_RENAMED = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
    "mtp.": "mtp.",
}
"""How names begin since transformers 4.52, and before."""


def text_half(
    architecture: str, config: Mapping[str, object], tensors: Mapping[str, T]
) -> tuple[Mapping[str, object], dict[str, T]]:
    """Return the config and the tensors of the text half; those of a text model as they are.

    What the text's own config leaves out is taken from that of the whole.
    """
    own = config.get("text_config")
    if not architecture.endswith("ForConditionalGeneration") or not isinstance(own, Mapping):
        return config, dict(tensors)
    renamed = {
        new + name.removeprefix(old): tensor
        for name, tensor in tensors.items()
        for old, new in _RENAMED.items()
        if name.startswith(old)
    }
    return {**config, **own}, renamed
