"""llama.cpp through llama-cpp-python: plain greedy decoding, and the prompt lookup that comes with the binding.

It reads the same GGUF file. Plain decoding calls the library directly, a decode and its greedy sampler a token, so that
no Python of the binding stands between. The lookup drafts 2 tokens, which its documentation advises for CPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

NAME = "llama.cpp"
REQUIREMENTS = ("llama-cpp-python==0.3.36",)
WAYS = ("plain", "lookup")
HAS_PASSES = True

LOOKUP_TOKENS = 2
CHUNK = 512

Passes = Callable[[int, int, int], Callable[[], None]]
Generate = Callable[[list[int]], Iterator[int]]


def load(model: str, way: str, num_threads: int, max_len: int) -> Generate | Passes:
    """Greedy decoding of token ids, without end; for the way `passes`, single passes to be timed."""
    if way == "passes":
        return _passes(model, num_threads)
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


def _passes(model: str, num_threads: int) -> Passes:
    """Passes as (sequences, rows, context); each case gets a context of its own, made when it is first asked for."""
    import llama_cpp as lib
    from llama_cpp._utils import suppress_stdout_stderr

    with suppress_stdout_stderr(disable=False):
        weights = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
    if not weights:
        raise RuntimeError(f"llama.cpp cannot load {model}")
    made: dict[tuple[int, int, int], Callable[[], None]] = {}

    def passes(num_seqs: int, rows: int, context: int) -> Callable[[], None]:
        key = (num_seqs, rows, context)
        if key not in made:
            made[key] = _case(weights, num_threads, *key)
        return made[key]

    return passes


def _case(  # type: ignore[no-untyped-def]  # the library has no types here
    weights, num_threads: int, num_seqs: int, rows: int, context: int
) -> Callable[[], None]:
    import llama_cpp as lib

    params = lib.llama_context_default_params()
    params.n_ctx = num_seqs * -(-(context + rows) // 256) * 256
    params.n_batch = params.n_ubatch = CHUNK
    params.n_seq_max = num_seqs
    params.n_threads = params.n_threads_batch = num_threads
    ctx = lib.llama_init_from_model(weights, params)
    memory = lib.llama_get_memory(ctx)
    num_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(weights))

    def decode(start: int, count: int, seqs: range, all_logits: bool) -> None:
        batch = lib.llama_batch_init(count * len(seqs), 0, 1)
        for seq in seqs:
            for i in range(count):
                at = batch.n_tokens
                batch.token[at] = (start + i) % num_vocab
                batch.pos[at] = start + i
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = seq
                batch.logits[at] = all_logits or i == count - 1
                batch.n_tokens += 1
        failed = lib.llama_decode(ctx, batch)
        lib.llama_batch_free(batch)
        if failed:
            raise RuntimeError("llama_decode failed")

    for start in range(0, context, CHUNK):
        decode(start, min(CHUNK, context - start), range(1), False)
    for seq in range(1, num_seqs):
        lib.llama_memory_seq_cp(memory, 0, seq, -1, -1)

    def run() -> None:
        decode(context, rows, range(num_seqs), context > 0)
        for seq in range(num_seqs):
            lib.llama_memory_seq_rm(memory, seq, context, -1)

    return run
