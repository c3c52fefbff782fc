"""Logits by llama.cpp, run by its environment's Python: MODEL.gguf ADAPTER.py OUT.npy TOKEN...; (T, V) fp32."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np

model, adapter, out, *tokens = sys.argv[1:]
spec = importlib.util.spec_from_file_location("adapter", adapter)
assert spec is not None
assert spec.loader is not None
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)
sequence = peer.Sequence(model, 1, 512)
np.save(out, sequence.extend([*map(int, tokens)], len(tokens)))
