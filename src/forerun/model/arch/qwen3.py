"""Qwen3 (dense): the llama-like shape with an RMS norm on every head of q and k."""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import llama_like, plain_source

HF_ARCHITECTURES = ("Qwen3ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen3",)

config = partial(llama_like, family="qwen3", qk_norm="head")
source = plain_source
