"""The torch backend (`--backend torch`): `forerun.lab.torch`, where the extra `torch` is installed."""

from __future__ import annotations

from typing import Any

from forerun.model.config import ModelConfig
from forerun.model.model import Model
from forerun.system.device import torch_problem

PRIORITY = 0
DEVICES = ("cpu",)


def unsupported(config: ModelConfig, device: str) -> str | None:
    """Return why torch cannot run models here: it is not installed. It runs every model."""
    return torch_problem()


def absent(device: str) -> str | None:
    """Return why torch has no such device."""
    from forerun.lab.torch.backend import missing_device

    return missing_device(device)


def load(*given: Any, **named: Any) -> Model:
    """Return a model in fp32; see `forerun.lab.torch.backend.load`."""
    from forerun.lab.torch import backend

    return backend.load(*given, **named)


def blank(*given: Any, **named: Any) -> Model:
    """Return a model without its weights; see `forerun.lab.torch.backend.blank`."""
    from forerun.lab.torch import backend

    return backend.blank(*given, **named)
