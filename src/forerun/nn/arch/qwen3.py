"""Qwen3 (dense): the llama-like shape with an RMS norm on every head of q and k."""

from __future__ import annotations

from dataclasses import replace

from forerun.nn.arch._common import plain_source
from forerun.nn.arch._llama_like import llama_like
from forerun.nn.arch._settings import Settings
from forerun.nn.config import ModelConfig

HF_ARCHITECTURES = ("Qwen3ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen3",)

source = plain_source


def config(settings: Settings) -> ModelConfig:
    """The config of a checkpoint."""
    return replace(llama_like(settings, "qwen3"), qk_norm=True)
