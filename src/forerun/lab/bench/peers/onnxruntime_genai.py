"""ONNX Runtime GenAI: greedy decoding, its n-gram lookup, and a draft model.

Its model builder makes 4-bit weights of blocks of 32, output head included, multiplied with 8-bit activations (accuracy
level 4). Both kinds of speculation adapt the number of drafted tokens as they run (`min_adaptive_k`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

NAME = "onnxruntime-genai"
REQUIREMENTS = (
    "onnxruntime-genai==0.18.0",
    "onnx==1.23.2",
    "onnx-ir==1.1.0",
    "torch==2.13.0",
    "transformers==5.23.0",
    "accelerate==1.15.0",
    "gguf==0.19.0",
)
QUANT = "int4 g32"
KEEPS_PREFIXES = False
WAYS = ("plain", "lookup", "draft_model")

SPECULATION = {
    "lookup": {"ngram_size": 3, "max_draft_tokens": 8, "min_adaptive_k": 2},
    "draft_model": {"max_draft_tokens": 5, "min_adaptive_k": 2},
}


def convert(gguf: str, checkpoint: Callable[[], str], target: str) -> None:
    """4 bits with the library's own builder, which is a script."""
    builder = [sys.executable, "-P", "-m", "onnxruntime_genai.models.builder"]
    paths = ["-i", checkpoint(), "-o", target, "-c", f"{target}-cache"]
    form = ["-p", "int4", "-e", "cpu", "--extra_options"]
    subprocess.run(
        [*builder, *paths, *form, "int4_block_size=32", "int4_accuracy_level=4"], check=True
    )


def load(
    model: str, way: str, num_threads: int, max_len: int, draft: str | None
) -> Callable[[list[int], int, Callable[[list[int]], None]], None]:
    """Greedy decoding of token ids."""
    import onnxruntime_genai as og

    session = {"session_options": {"intra_op_num_threads": num_threads}}
    described: dict[str, object] = {"decoder": session}
    if way == "draft_model":
        assert draft is not None
        with open(os.path.join(draft, "genai_config.json"), encoding="utf-8") as file:
            decoder = json.load(file)["model"]["decoder"]
        decoder["session_options"] |= session["session_options"]
        decoder["filename"] = os.path.join(os.path.relpath(draft, model), decoder["filename"])
        described |= {"type": "speculative", "draft": decoder}
    config = og.Config(model)
    config.overlay(json.dumps({"model": described}))
    loaded = og.Model(config)

    def generate(prompt: list[int], num_tokens: int, emit: Callable[[list[int]], None]) -> None:
        params = og.GeneratorParams(loaded)
        length = len(prompt) + num_tokens
        # The least length keeps an end of text from ending the answer.
        params.set_search_options(do_sample=False, min_length=length, max_length=length)
        if way in SPECULATION:
            params.set_speculative_options(**SPECULATION[way])
        generator = og.Generator(loaded, params)
        generator.append_tokens(prompt)
        for _ in range(num_tokens):
            generator.generate_next_token()
            emit([int(generator.get_next_tokens()[0])])

    return generate
