"""llama.cpp through llama-cpp-python: plain greedy decoding, and the prompt lookup that comes with the binding.

It reads the same GGUF file. Plain decoding calls the library directly, a decode and its greedy sampler a token, so that
no Python of the binding stands between. The lookup drafts 2 tokens, which its documentation advises for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

NAME = "llama.cpp"
REQUIREMENTS = ("llama-cpp-python==0.3.36",)
WAYS = ("plain", "lookup")

LOOKUP_TOKENS = 2
CHUNK = 512

Generate = Callable[[list[int]], Iterator[int]]


def load(model: str, way: str, num_threads: int, max_len: int) -> Generate:
    """Greedy decoding of token ids, without end."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    lookup = way == "lookup"
    llama = Llama(
        model,
        n_ctx=max_len,
        n_batch=CHUNK,
        n_threads=num_threads,
        n_threads_batch=num_threads,
        draft_model=LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS) if lookup else None,
        logits_all=lookup,  # the binding wants it to check a draft
        verbose=False,
    )
    return (lambda prompt: llama.generate(prompt, temp=0.0)) if lookup else _plain(llama)


def _plain(llama) -> Generate:  # type: ignore[no-untyped-def]  # the library has no types here
    import llama_cpp as lib

    sampler = lib.llama_sampler_init_greedy()

    def decode(tokens: list[int]) -> None:
        array = (lib.llama_token * len(tokens))(*tokens)  # the batch only points to it
        batch = lib.llama_batch_get_one(array, len(tokens))
        if lib.llama_decode(llama.ctx, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def generate(prompt: list[int]) -> Iterator[int]:
        lib.llama_memory_clear(lib.llama_get_memory(llama.ctx), True)
        for start in range(0, len(prompt), CHUNK):
            decode(prompt[start : start + CHUNK])
        while True:
            token = lib.llama_sampler_sample(sampler, llama.ctx, -1)
            yield token
            decode([token])

    return generate
