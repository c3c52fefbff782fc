"""Baidu's ERNIE 4.5 (dense): the llama-like shape, whose neighbouring features turn together."""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import interleaved_source, llama_like

HF_ARCHITECTURES = ("Ernie4_5ForCausalLM",)
GGUF_ARCHITECTURES = ("ernie4_5",)

config = partial(llama_like, family="ernie4_5")
source = partial(interleaved_source, kinds=("hf", "gguf"))
