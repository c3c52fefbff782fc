"""The text half of a model that also sees or hears: its tensors by the names of a text model, and its own config."""

from __future__ import annotations

import re
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
_OF_THE_WHOLE = ("tie_word_embeddings",)
_BASE = {"layers.0.": "model.", "decoder.layers.0.": "model.", "h.0.": "transformer."}


def language_model_of(
    architecture: str, config: Mapping[str, object], tensors: Mapping[str, T]
) -> tuple[Mapping[str, object], dict[str, T]]:
    """Return the config and the tensors of the text half; those of a text model as they are, `backbone.` as `model.`.

    What the text's own config leaves out is taken from that of the whole, which says alone whether the head is tied.
    """
    inner = config.get("text_config")
    has_parts = architecture.endswith("ForConditionalGeneration") or "For" not in architecture
    if not has_parts or not isinstance(inner, Mapping):
        return config, {re.sub(r"^backbone\.", "model.", name): t for name, t in tensors.items()}
    renamed = {
        new + name.removeprefix(old): tensor
        for name, tensor in tensors.items()
        for old, new in _RENAMED.items()
        if name.startswith(old)
    }
    own = {key: config[key] for key in _OF_THE_WHOLE if config.get(key) is not None}
    return {**config, **inner, **own}, renamed


def with_prefix(tensors: Mapping[str, T]) -> dict[str, T]:
    """Return the tensors of a model that was saved without its head under the names that they have beside one."""
    for first, prefix in _BASE.items():
        if any(name.startswith(first) for name in tensors):
            return {
                name if name.startswith("lm_head.") else prefix + name: tensor
                for name, tensor in tensors.items()
            }
    return dict(tensors)
