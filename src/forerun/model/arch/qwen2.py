"""Qwen2 and Qwen2.5: the llama-like shape with biases on q, k and v."""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import llama_like, plain_source

HF_ARCHITECTURES = ("Qwen2ForCausalLM",)
GGUF_ARCHITECTURES = ("qwen2",)

config = partial(llama_like, family="qwen2")
source = plain_source
