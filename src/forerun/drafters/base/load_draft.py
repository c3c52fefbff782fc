"""Loading a draft: a model that runs together with the one that answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forerun.core.config import Quant
from forerun.drafters.base.contract import SELF, LoadedModel
from forerun.hub.names import resolve
from forerun.model.model import Model
from forerun.weights.checkpoint import open_checkpoint


def load_draft(
    path: Path,
    shares_with: Model,
    load: Callable[..., Model],
    model: str,
    *,
    quant: Quant = "none",
    head_bits: int | None = None,
) -> LoadedModel:
    """Load another model to run with one from `path`, which SELF names."""
    checkpoint = open_checkpoint(path if model == SELF else resolve(model))
    loaded = load(checkpoint, shares_with=shares_with, quant=quant, head_bits=head_bits)
    return LoadedModel(loaded, checkpoint.tokenizer())
