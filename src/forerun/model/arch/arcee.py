"""Arcee's AFM (4.5B): llama with a plain MLP and squared ReLU. GGUF interleaves q and k."""

from __future__ import annotations

from functools import partial

from forerun.model.arch.base.mapping import interleaved_source, llama_like

HF_ARCHITECTURES = ("ArceeForCausalLM",)
GGUF_ARCHITECTURES = ("arcee",)

config = partial(llama_like, family="arcee", activation="relu2", gated_mlp=False)
source = interleaved_source
