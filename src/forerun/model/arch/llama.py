"""Llama 2 and 3, SmolLM2, TinyLlama, CodeLlama, Mistral: the llama-like shape itself. GGUF interleaves q and k."""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import interleaved_source, llama_like

HF_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")
GGUF_ARCHITECTURES = ("llama",)

config = partial(llama_like, family="llama")
source = interleaved_source
