"""Single passes of llama.cpp, to be timed beside ours: runs in its environment, through its C interface."""

from __future__ import annotations

from collections.abc import Callable

NAME = "llama.cpp"
QUANT = None
CHUNK = 512

Passes = Callable[[int, int, int], Callable[[], None]]


def load(model: str, way: str, num_threads: int, max_len: int, draft: str | None) -> Passes:
    """Passes as (sequences, rows, context); each case gets a context of its own, made when it is first asked for."""
    del way, max_len, draft
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
