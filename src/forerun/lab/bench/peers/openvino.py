"""OpenVINO GenAI: greedy decoding, prompt lookup, and a draft model.

Its own GGUF reader makes its format of the file, weights as they are: saved, because reading anew takes long and is not
offered for drafts. All ways run on its default, paged attention backend, which two of them need.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

NAME = "openvino"
REQUIREMENTS = ("openvino-genai==2026.4.1.0", "numpy==2.4.6")
QUANT = None
KEEPS_PREFIXES = True
WAYS = ("plain", "lookup", "draft_model")

DRAFT_TOKENS, LOOKUP_NGRAM = 5, 3

Emit = Callable[[list[int]], None]


def convert(gguf: str, checkpoint: Callable[[], str], target: str) -> None:
    """Convert through a link to the file, as the reader saves beside what it reads."""
    import openvino_genai as genai

    Path(target).mkdir()
    link = Path(target) / "model.gguf"
    link.symlink_to(Path(gguf).absolute())
    genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    link.unlink()
    if not (Path(target) / "openvino_model.xml").exists():
        raise RuntimeError("the GGUF reader saved nothing")


def load(
    model: str, way: str, num_threads: int, max_len: int, draft: str | None
) -> Callable[[list[int], int, Emit], None]:
    """Greedy decoding of token ids."""
    import numpy as np
    import openvino_genai as genai
    from openvino import Tensor

    options: dict[str, object] = {"INFERENCE_NUM_THREADS": num_threads}
    config = genai.GenerationConfig(do_sample=False, ignore_eos=True)
    if way == "lookup":
        pipeline = genai.LLMPipeline(model, "CPU", prompt_lookup=True, **options)
        config.max_ngram_size = LOOKUP_NGRAM
    elif way == "draft_model":
        small = genai.draft_model(draft, "CPU", **options)
        pipeline = genai.LLMPipeline(model, "CPU", draft_model=small, **options)
    else:
        pipeline = genai.LLMPipeline(model, "CPU", **options)
    if way != "plain":
        config.num_assistant_tokens = DRAFT_TOKENS

    class Streamer(genai.StreamerBase):
        """Passes token ids on."""

        def __init__(self, emit: Emit) -> None:
            super().__init__()
            self.emit = emit

        def write(self, token: int | list[int]) -> genai.StreamingStatus:
            """A token, or those of one step."""
            self.emit(token if isinstance(token, list) else [token])
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """End the stream; no token waits."""

    def generate(prompt: list[int], num_tokens: int, emit: Emit) -> None:
        ids = np.array([prompt], dtype=np.int64)
        config.max_new_tokens = num_tokens
        inputs = genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        pipeline.generate(inputs, config, Streamer(emit))

    return generate
