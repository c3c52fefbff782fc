"""The Triton backend (`--device cuda`): `forerun.gpu`, where the extra `gpu` is installed; its tokens are the CPU's.

Networks that draft for a model there get to their kernels through it, too.
"""

from __future__ import annotations

import importlib
from typing import Any

from forerun.model.config import LayerConfig, ModelConfig
from forerun.model.model import Model
from forerun.system.device import torch_problem

NO_TRITON = (
    "triton is not installed: it comes with forerun's extra gpu (pip install '.[gpu]' in a clone; docs/installing.md); "
    "or use --device cpu"
)


def unsupported(config: ModelConfig) -> str | None:
    """Return why the kernels cannot run a model: not built, not installed."""
    return not_built(config) or torch_problem() or _missing_triton()


def _missing_triton() -> str | None:
    try:
        importlib.import_module("triton")
    except ImportError:
        return NO_TRITON
    return None


def not_built(config: ModelConfig) -> str | None:
    """Return what of a model the kernels do not compute, in a line that names the CPU as the way; None if they do."""
    layers = [config.layer(i) for i in range(config.num_layers)]
    widths = {
        config.hidden_size,
        *(each.intermediate_size or config.intermediate_size for each in layers),
        *(each.experts.intermediate_size for each in layers if each.experts is not None),
    }
    missing = {
        "attention to latents": config.latent is not None,
        "recurrent layers": config.is_recurrent,
        "experts with norms or a gate beside them": any(map(_has_odd_experts, layers))
        or (any(each.experts for each in layers) and config.norms in ("after", "both")),
        "several streams of a row": config.streams is not None,
        "per-layer embeddings": config.per_layer_width is not None,
        "keys and values of another layer": config.borrows_kv or any(map(_shares_kv, layers)),
        "norms of values and scales of layers": config.value_norm or config.layer_scales,
        "gates of attention": config.attention_gate,
        "sparse MLPs": any(each.sparsity_cutoff is not None for each in layers),
        "layers of one sublayer": not all(
            each.has_mixer and (each.has_mlp or each.experts is not None) for each in layers
        ),
        "widths that are no multiples of 16": any(width % 16 for width in widths),
    }
    names = [name for name, is_missing in missing.items() if is_missing]
    return f"{', '.join(names)} are not built for GPUs; use --device cpu" if names else None


def _has_odd_experts(layer: LayerConfig) -> bool:
    experts = layer.experts
    return experts is not None and (experts.has_norms or experts.gates_mlp)


def _shares_kv(layer: LayerConfig) -> bool:
    return layer.shares_kv_of is not None or not layer.has_values


def device_of(model: Model) -> str | None:
    """Return the device that a model of this backend computes on; None for other models."""
    return str(model.device) if hasattr(type(model), "host_decoder") else None  # type: ignore[attr-defined]


def absent(device: str) -> str | None:
    """Return why there is no such device here, or none that is new enough; None if there is."""
    from forerun.gpu import devices

    return devices.absent(device)


def free_nbytes(device: str) -> int | None:
    """Return the memory that is free on a device; None where there is none."""
    if torch_problem() or absent(device):
        return None
    from forerun.gpu import devices

    return devices.free_nbytes(device)


def load(
    *given: Any,
    device: str,
    num_threads: int | None = None,
    shares_with: Model | None = None,
    **named: Any,
) -> Model:
    """Return a model on the device; see `forerun.gpu.load.load`."""
    from forerun.gpu import load as room

    return room.load(*given, device=device, **named)


def blank(
    *given: Any,
    device: str,
    num_threads: int | None = None,
    shares_with: Model | None = None,
    **named: Any,
) -> Model:
    """Return a model without its weights; see `forerun.gpu.load.blank`."""
    from forerun.gpu import load as room

    return room.blank(*given, **named)


def draft_network(model: Model, kind: str, *shape: Any) -> Any:
    """Return the kernels of a network that drafts for a model on a device; see `forerun.gpu.networks.new`.

    None for a model that is elsewhere.
    """
    if device_of(model) is None:
        return None
    from forerun.gpu import networks as room

    return room.new(kind, model, *shape)  # type: ignore[arg-type]  # it has what its own decoder has
