"""SmolLM3: llama with every fourth layer without positions (Yang et al., arXiv 2501.18795)."""

from __future__ import annotations

from dataclasses import replace

from forerun.core.errors import LoadError, short_repr
from forerun.model.arch.base.mapping import interleaved_source, llama_like, read_layers
from forerun.model.arch.base.settings import Settings
from forerun.model.config import ModelConfig

HF_ARCHITECTURES = ("SmolLM3ForCausalLM",)
GGUF_ARCHITECTURES = ("smollm3",)

source = interleaved_source


def config(settings: Settings) -> ModelConfig:
    """Return the config of a checkpoint."""
    settings.assumed = {"rope_theta": 2_000_000.0}
    layers = [
        layer if is_rotary else replace(layer, rope=None)
        for layer, is_rotary in zip(read_layers(settings), _rotary(settings), strict=True)
    ]
    return llama_like(settings, "smollm3", layers=layers)


def _rotary(settings: Settings) -> list[bool]:
    """Return whether each layer has positions. The key's name lies: 1 is a layer with them."""
    num_layers = settings.size("num_layers")
    given = settings.get("no_rope_layers")
    if settings.is_gguf or given is None:
        every = settings.integer("no_rope_layer_interval", 4, high=1 << 16)
        return [(i + 1) % every != 0 for i in range(num_layers)]
    if (
        not isinstance(given, list)
        or len(given) < num_layers
        or any(flag not in (0, 1) for flag in given)
    ):
        raise LoadError(
            f"'no_rope_layers' is {short_repr(given)}, but must be a list of {num_layers} ones and zeros"
        )
    return [flag == 1 for flag in given[:num_layers]]
