"""Hugging Face transformers on torch: `generate`, plain, with prompt lookup, and with an assistant model.

The weights are dequantized, to bf16 where the processor multiplies it, else to fp32. Numbers of drafted tokens are the
library's advice (lookup) and default (assistant).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "transformers"
REQUIREMENTS = ("transformers==5.23.0", "torch==2.13.0", "accelerate==1.15.0", "gguf==0.19.0")
QUANT = "bf16/fp32"
KEEPS_PREFIXES = False
WAYS = ("plain", "lookup", "draft_model")

LOOKUP_TOKENS = 10

Emit = Callable[[list[int]], None]


def convert(gguf: str, checkpoint: Callable[[], str], target: str) -> None:
    """Write the folder that it reads."""
    Path(checkpoint()).rename(target)


def load(
    model: str, way: str, num_threads: int, max_len: int, draft: str | None
) -> Callable[[list[int], int, Emit], None]:
    """Greedy decoding of token ids."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.generation.streamers import BaseStreamer

    torch.set_num_threads(num_threads)
    torch.set_num_interop_threads(1)
    dtype = torch.bfloat16 if torch.cpu.get_capabilities().get("avx512_bf16") else torch.float32

    def read(path: str) -> Any:
        loaded = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
        loaded.generation_config.eos_token_id = None
        return loaded.eval()

    target = read(model)
    speculation: dict[str, object] = {}
    if way == "lookup":
        speculation = {"prompt_lookup_num_tokens": LOOKUP_TOKENS}
    elif way == "draft_model":
        assert draft is not None
        speculation = {"assistant_model": read(draft)}

    class Streamer(BaseStreamer):
        """Passes token ids on; the first it is given is the prompt."""

        def __init__(self, emit: Emit) -> None:
            self.emit = emit
            self.is_prompt = True

        def put(self, value: torch.Tensor) -> None:
            """Tokens of one step."""
            if not self.is_prompt:
                self.emit(value.flatten().tolist())
            self.is_prompt = False

        def end(self) -> None:
            """End the stream; no token waits."""

    def generate(prompt: list[int], num_tokens: int, emit: Emit) -> None:
        ids = torch.tensor([prompt])
        target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=Streamer(emit),
            **speculation,
        )

    return generate
