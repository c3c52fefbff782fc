"""Qwen3 (dense) and Qwen3-VL's text half: the llama-like shape with an RMS norm on every head of q and k.

Of a text Qwen3-VL's three kinds of positions are one.
"""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import llama_like, plain_source

HF_ARCHITECTURES = ("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration")
GGUF_ARCHITECTURES = ("qwen3", "qwen3vl")

config = partial(llama_like, family="qwen3", qk_norm="head")
source = plain_source
