"""Answer a prompt with a model file and print the token ids: run here and under emulation, to be compared.

`python -m dev.arm.answer FILE.gguf` prints, as JSON, the instruction set, the ids of a plain, a drafted and a sampled
answer, and a digest of the bits of the prompt's logits.
"""

from __future__ import annotations

import hashlib
import json
import sys

from forerun import LLM, SamplingParams
from forerun.core.batch import Batch, Segment
from forerun.model.backends.native import NativeDecoder

PROMPT = "The planets of the solar system, in order: Mercury, Venus, Earth,"
NUM_TOKENS = 16


def answer(file: str) -> dict[str, object]:
    """Return what is compared."""
    llm = LLM(file, drafter="recycling", backend="native", threads=2)
    model = llm.model
    assert isinstance(model, NativeDecoder)
    prompt = Segment(0, 0, tuple(llm.tokenizer.encode(PROMPT)))
    hidden = model.forward(Batch((prompt,)), model.new_cache(1, len(prompt.tokens)))
    digest = hashlib.sha256(model.head(hidden.last).tobytes()).hexdigest()
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS)
    drawn = SamplingParams(temperature=0.8, seed=7, max_tokens=NUM_TOKENS)
    answers = {
        "plain": llm.with_drafter("none").generate(PROMPT, greedy),
        "drafted": llm.generate(PROMPT, greedy),
        "sampled": llm.generate(PROMPT, drawn),
    }
    ids = {name: list(result[0].outputs[0].token_ids) for name, result in answers.items()}
    return {"isa": model.isa, "ids": ids, "logits": digest}


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1])))
