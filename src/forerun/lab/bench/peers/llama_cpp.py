"""llama.cpp through llama-cpp-python: plain greedy decoding, prompt lookup, and a draft model.

It reads the same GGUF file. Everything calls the library directly, so that no Python of the binding stands between: its
own loop asks for the logits of every row and is the slower one. The lookup is the binding's, with the 2 tokens that its
documentation advises for CPUs. The draft model stops guessing where it is less than 75 % sure, as llama.cpp's tools do.
What a prompt shares with the one before is not read again, as its server has it.
Single passes, to be timed beside ours, go through its C interface.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

NAME = "llama.cpp"
REQUIREMENTS = ("llama-cpp-python[server]==0.3.36",)
QUANT = None
KEEPS_PREFIXES = True
WAYS = ("plain", "lookup", "draft_model", "passes", "logits")

LOOKUP_TOKENS, LOOKUP_NGRAM = 2, 3
DRAFT_TOKENS, DRAFT_SURENESS = 5, 0.75
CHUNK = 512
RECURRENT_ONLY = 1
"""Its flag of a sequence's state without keys and values."""

Emit = Callable[[list[int]], None]
Propose = Callable[[list[int], int], list[int]]
"""Tokens, and at most how many: what may come next."""


class Sequence:
    """A model and the tokens its cache holds."""

    def __init__(self, model: str, num_threads: int, max_len: int) -> None:
        import llama_cpp
        from llama_cpp import Llama

        self._lib = llama_cpp
        self._llama = Llama(
            model,
            n_ctx=max_len,
            n_batch=CHUNK,
            n_threads=num_threads,
            n_threads_batch=num_threads,
            verbose=False,
        )
        self._batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)
        self.tokens: list[int] = []

    def extend(self, tokens: list[int], num_rows: int = 1):  # type: ignore[no-untyped-def]
        """Pass these tokens; the logits after the last `num_rows` of them, (num_rows, V)."""
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            self._pass(chunk, min(num_rows, len(chunk)))
        import numpy as np

        shape = (self._llama.n_vocab(),)
        get, ctx = self._lib.llama_get_logits_ith, self._llama.ctx
        rows = range(len(chunk) - num_rows, len(chunk))
        return np.stack([np.ctypeslib.as_array(get(ctx, row), shape) for row in rows])

    def _pass(self, tokens: list[int], num_rows: int) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = len(self.tokens) + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = i >= len(tokens) - num_rows
        if self._lib.llama_decode(self._llama.ctx, batch) != 0:
            raise RuntimeError("llama_decode failed")
        self.tokens += tokens

    def rewind(self, num_tokens: int) -> None:
        """Forget all tokens but the first ones."""
        memory = self._lib.llama_get_memory(self._llama.ctx)
        self._lib.llama_memory_seq_rm(memory, 0, num_tokens, -1)
        del self.tokens[num_tokens:]

    def resume(self, tokens: list[int]) -> list[int]:
        """Forget what differs from these tokens; those that are left to pass, the last at least."""
        same = 0
        while same < min(len(self.tokens), len(tokens) - 1) and self.tokens[same] == tokens[same]:
            same += 1
        self.rewind(same)
        return tokens[same:]


def load(
    model: str, way: str, num_threads: int, max_len: int, draft: str | None
) -> Callable[..., Any]:
    """Greedy decoding of token ids, single passes, or logits."""
    if way == "passes":
        return _passes(model, num_threads)
    target = Sequence(model, num_threads, max_len)
    if way == "logits":
        return partial(_logits, target)
    if way == "lookup":
        propose = _lookup()
    elif way == "draft_model":
        assert draft is not None
        propose = _drafted(Sequence(draft, num_threads, max_len))
    else:
        propose = _nothing

    def generate(prompt: list[int], num_tokens: int, emit: Emit) -> None:
        tokens = list(prompt)
        new = [int(target.extend(target.resume(tokens))[0].argmax())]
        while True:
            emit(new)
            tokens += new
            num_left = len(prompt) + num_tokens - len(tokens)
            if num_left <= 0:
                return
            guess = propose(tokens, num_left - 1)
            best = target.extend([tokens[-1], *guess], 1 + len(guess)).argmax(axis=1).tolist()
            num_kept = 0
            while num_kept < len(guess) and guess[num_kept] == best[num_kept]:
                num_kept += 1
            new = best[: num_kept + 1]
            target.rewind(len(tokens) + num_kept)

    return generate


def _nothing(tokens: list[int], limit: int) -> list[int]:
    return []


def _lookup() -> Propose:
    import numpy as np
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    find = LlamaPromptLookupDecoding(LOOKUP_NGRAM, LOOKUP_TOKENS)
    return lambda tokens, limit: find(np.array(tokens, dtype=np.intc)).tolist()[:limit]


def _drafted(draft: Sequence) -> Propose:
    import numpy as np

    def propose(tokens: list[int], limit: int) -> list[int]:
        guess: list[int] = []
        ahead = draft.resume(tokens)
        while len(guess) < min(limit, DRAFT_TOKENS):
            logits = draft.extend(ahead)[0]
            if 1 / np.exp(logits - logits.max()).sum() < DRAFT_SURENESS:
                break
            ahead = [int(logits.argmax())]
            guess += ahead
        return guess

    return propose


def _logits(target: Sequence, tokens: list[int], path: str) -> int:
    """Write the logits after every token, fp32; their number of rows."""
    target.rewind(0)
    with open(path, "wb") as file:
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            target.extend(chunk, len(chunk)).tofile(file)
    return len(tokens)


def _passes(model: str, num_threads: int) -> Callable[[int, int, int], Callable[[], None]]:
    """Passes as (sequences, rows, context); each case gets a context of its own, made when it is first asked for."""
    import llama_cpp as lib
    from llama_cpp._utils import suppress_stdout_stderr

    with suppress_stdout_stderr(disable=False):
        weights = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
    if not weights:
        raise RuntimeError(f"llama.cpp cannot load {model}")
    return cache(partial(_case, weights, num_threads))


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

    has_state = lib.llama_model_is_hybrid(weights) or lib.llama_model_is_recurrent(weights)
    states = {seq: _state(ctx, seq) for seq in range(num_seqs)} if has_state else {}

    def run() -> None:
        decode(context, rows, range(num_seqs), context > 0)
        for seq, state in states.items():  # as its server does after rejected drafts
            lib.llama_state_seq_set_data_ext(ctx, state, len(state), seq, RECURRENT_ONLY)
        for seq in range(num_seqs):
            lib.llama_memory_seq_rm(memory, seq, context, -1)

    return run


def _state(ctx: Any, seq: int) -> ctypes.Array[ctypes.c_uint8]:
    """Copy a sequence's recurrent state."""
    import llama_cpp as lib

    size = lib.llama_state_seq_get_size_ext(ctx, seq, RECURRENT_ONLY)
    state = (ctypes.c_uint8 * size)()
    lib.llama_state_seq_get_data_ext(ctx, state, size, seq, RECURRENT_ONLY)
    return state
