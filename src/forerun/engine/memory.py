"""The memory plan, in bytes by component: a pure function of numbers, known before anything is loaded.

The whole process is counted, as `top` and a container's limit have it:

    weights          packed, as the kernels read them
    kv               blocks of keys and values: of the sequences that run, their drafts' scratch rows, shared prefixes
    drafter_weights  a draft model's or a drafting network's
    drafter_kv       its keys and values
    drafter_tables   suffix indexes, tables of next tokens, states a sequence
    step_buffers     hidden states and the kernels' scratch memory, of the rows of one pass
    logits           of the rows that are looked at together, with what sampling makes of one
    tokenizer        pieces, merges and their hash tables
    program          what the process held before: Python, libraries, modules; and what of them comes later
    loading          what the moment of loading takes beyond what running does
    server           its threads, requests and helper processes, where one runs the model

`plan` adds them up. `fit` gives up what does not fit a budget, from two lists in order: the drafter's sizes, and for
each of them what is run, halved step by step. Who gathers the numbers is `engine/planner.py`.

Source of the sum: SpecMemo (arXiv 2506.01986) models the footprint of speculative decoding and trims what is allocated
for candidates that will be rejected; the terms here are those of this engine, measured (docs/memory.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from forerun.core.config import Precision
from forerun.drafters.base.contract import DrafterBytes
from forerun.model.cache.blocks import BLOCK_ROWS, blocks_of
from forerun.model.cache.states import DRAFT_ROWS

COMPONENTS = (
    *("weights", "kv", "drafter_weights", "drafter_kv", "drafter_tables"),
    *("step_buffers", "logits", "tokenizer", "program", "loading", "server"),
)
ON_DEVICE = ("weights", "kv", "drafter_weights", "drafter_kv", "step_buffers")
"""Components that lie in a GPU's memory where one computes."""
LOGIT_ROWS = 64
"""Rows of logits that are held together, or those of one sequence."""
LOGIT_COPIES = 6
"""Rows (V,) fp32 that sampling makes of the one it looks at: processed, sorted with ids, probabilities in fp64."""
TOKEN_NBYTES = 400
"""Bytes of the tokenizer for each token: measured on vocabularies from 49152 to 151936."""
HEADER_NBYTES = 280
"""Bytes of a file's header for each token, until the weights are loaded: measured on the same."""
WORDS_NBYTES = 2_500_000
"""Bytes of the tokenizer's cache of words."""
LATER_NBYTES = 16_000_000
"""Bytes of modules that are imported when they are first used, and of the heap: measured."""
PROCESS_NOISE_NBYTES = 4_000_000
"""Bytes by which processes of one program differ when they begin to plan."""
SERVER_NBYTES = 24_000_000
"""Bytes of a server's threads, and its heap between requests: measured."""
HELPERS_NBYTES = 60_000_000
"""Bytes of a model's processes for what clients choose (`core.helper`), beside what they share with the server: that of
grammars begins with 14 MB and may grow by 21, two of conversations have 12 MB each (measured)."""
DROPPED_NBYTES = 33_554_432
"""Bytes that dropped models leave behind in one process: measured."""
WAITING = 32
"""Waiting requests that a plan counts besides the running ones; each further one takes as much."""
REQUEST_NBYTES, TOKEN_OF_REQUEST_NBYTES = 66_000, 20
"""Bytes of a waiting request with its connection, and of each token of its prompt: above the slopes of 64 and 128
requests of 9, 722 and 2893 tokens (dev/log, "The memory of a server")."""
NETWORK_NBYTES = 12_000_000
"""Bytes that building a network or a draft model leaves in the heap, a network a third of its own besides: measured."""
NETWORK_COPIES = 4
"""Bytes that a network takes while it is rounded, for each byte of its own: measured."""
FEW_DRAFT_ROWS = 16
"""Rows of a draft beside a recurrent state where memory is short."""
FEW_PREFILL_ROWS = 16
"""Rows of the smallest step: a prompt is read so many tokens at a time."""
NO_BYTES = DrafterBytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelNumbers:
    """A model, as far as its memory goes. Sizes in bytes."""

    hidden_size: int
    vocab_size: int
    weights: int
    num_tokens: int
    """Tokens of the tokenizer's vocabulary."""
    scratch: Callable[[Workload, int, int], int]
    """Bytes of scratch memory that a workload takes with so many rows in a pass and nodes in a draft."""
    process: int
    """Bytes that the process held before the model was opened."""
    kv_blocks: Mapping[Precision, int]
    """Bytes of a block of keys and values, by precision: as asked for, and as the user may choose instead."""
    state: int = 0
    """Bytes of a recurrent state, of all layers."""
    state_row: int = 0
    """Other bytes that a row takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterNumbers:
    """A drafter, as far as its memory goes. Sizes in bytes."""

    name: str
    fixed: DrafterBytes = NO_BYTES
    """What it holds before there is a sequence."""
    of_seq: Callable[[int], DrafterBytes] = lambda max_len: NO_BYTES
    """What a sequence of so many tokens adds, without keys and values that are in blocks."""
    kv_block: int = 0
    """Its keys and values, for each block of the target's."""
    num_nodes: int = 0
    """Nodes of a draft at most."""
    feature_width: int = 0
    """Numbers that it reads of each row of the target's pass."""
    is_begun_with_prompt: bool = True
    """Whether it reads those of a prompt, which are kept until it begins."""
    program: int = 0
    """Bytes of the program that it adds."""
    building: int = 0
    """Bytes that it takes for a moment when it is built, before there are keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be run."""

    num_seqs: int
    max_len: int
    min_len: int | None = None
    """Tokens of a sequence that are enough where memory is short; None for `max_len`."""
    precision: Precision
    prefill_rows: int
    is_server: bool = False
    """Whether a Python program or a server runs the engine."""
    num_vectors: int = 0
    """States of texts that a server holds for a request of embeddings."""
    logit_rows: int = LOGIT_ROWS
    """Rows of logits that are held together, or those of one sequence."""
    num_blocks: int | None = None
    """Blocks of keys and values; None for as many as the sequences can fill."""
    num_checkpoints: int = 0
    """Recurrent states kept besides those of the sequences."""
    draft_rows: int = DRAFT_ROWS
    """Rows of a draft that have room beside a recurrent state."""

    @property
    def blocks_seq(self) -> int:
        """Blocks that a full sequence fills."""
        return blocks_of(self.max_len)

    @property
    def blocks(self) -> int:
        """Blocks of the pool, those for drafts and prefixes included."""
        most = self.num_seqs * self.blocks_seq
        return most if self.num_blocks is None else min(self.num_blocks, most)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What was chosen, and its bytes by component."""

    workload: Workload
    drafter: DrafterNumbers
    components: Mapping[str, int]
    block_nbytes: int = 0
    """Bytes of a block of keys and values, the drafter's with it."""

    @property
    def total(self) -> int:
        """Bytes of all components together."""
        return sum(self.components.values())

    @property
    def on_device(self) -> int:
        """Bytes in a GPU's memory, where one computes."""
        return sum(self.components[name] for name in ON_DEVICE)

    @property
    def num_blocks(self) -> int:
        """Blocks of keys and values."""
        return self.workload.blocks

    @property
    def generation(self) -> int:
        """Bytes that generating takes beyond the model: SpecMemo's generation memory, a draft's weights included."""
        fixed = ("weights", "tokenizer", "program", "loading", "server")
        return self.total - sum(self.components[name] for name in fixed)


def plan(model: ModelNumbers, drafter: DrafterNumbers, workload: Workload) -> MemoryPlan:
    """Return the bytes by component, in the order of `COMPONENTS`."""
    seqs = workload.num_seqs
    blocks = workload.blocks
    rows = max(workload.prefill_rows, seqs) + seqs * drafter.num_nodes
    rows_seq = 1 + drafter.num_nodes
    logit_rows = min(max(workload.logit_rows, rows_seq), seqs * rows_seq)
    fixed, of_seq = drafter.fixed, drafter.of_seq(workload.max_len)
    running = {
        "kv": blocks * model.kv_blocks[workload.precision] + states_nbytes(model, workload),
        "drafter_kv": blocks * drafter.kv_block + fixed.kv + seqs * of_seq.kv,
        "drafter_tables": fixed.tables + seqs * of_seq.tables,
        "step_buffers": step_nbytes(model, rows, workload, drafter),
        "logits": (logit_rows + LOGIT_COPIES) * 4 * model.vocab_size,
    }
    loading = max(drafter.building, model.num_tokens * HEADER_NBYTES) - sum(running.values())
    sizes = running | {
        "weights": model.weights,
        "drafter_weights": fixed.weights + seqs * of_seq.weights,
        "tokenizer": model.num_tokens * TOKEN_NBYTES + WORDS_NBYTES,
        "program": model.process + LATER_NBYTES + drafter.program,
        "loading": max(0, loading),
        "server": server_nbytes(workload) + 4 * workload.num_vectors * model.hidden_size,
    }
    components = {name: sizes[name] for name in COMPONENTS}
    block = model.kv_blocks[workload.precision] + drafter.kv_block
    return MemoryPlan(workload, drafter, components, block)


def states_nbytes(model: ModelNumbers, workload: Workload) -> int:
    """Return the bytes of recurrent states, and of the rows beside those of sequences."""
    rows = (BLOCK_ROWS + workload.draft_rows) * model.state_row
    return workload.num_seqs * (model.state + rows) + workload.num_checkpoints * model.state


def together(totals: Iterable[int], process: int) -> int:
    """Add up plans for models of one server: its `process`, modules and threads are there once."""
    sizes = [*totals]
    shared = process + LATER_NBYTES + SERVER_NBYTES
    return sum(sizes) - max(len(sizes) - 1, 0) * shared


def server_nbytes(workload: Workload) -> int:
    """Return the bytes of a server with the requests that run and some that wait."""
    if not workload.is_server:
        return 0
    request = REQUEST_NBYTES + TOKEN_OF_REQUEST_NBYTES * workload.max_len
    return SERVER_NBYTES + HELPERS_NBYTES + (workload.num_seqs + WAITING) * request


def step_nbytes(
    model: ModelNumbers, num_rows: int, workload: Workload, drafter: DrafterNumbers
) -> int:
    """Return the bytes of hidden states and features of a pass, and of scratch memory for a part of it."""
    nodes = drafter.num_nodes
    held = num_rows * (model.hidden_size + drafter.feature_width)
    prompt = 0
    if drafter.is_begun_with_prompt:
        prompt = (
            2 * workload.max_len * drafter.feature_width
        )  # until the drafter begins, and joined
    return 4 * (held + prompt) + model.scratch(workload, num_rows, nodes)


def halved(model: ModelNumbers, workload: Workload) -> Iterator[Workload]:
    """Yield a workload and ever smaller ones: one number after the other is halved down to its least."""
    least = {
        "max_len": workload.max_len if workload.min_len is None else workload.min_len,
        "num_checkpoints": 0,
        "logit_rows": 1,
        "draft_rows": FEW_DRAFT_ROWS if model.state else workload.draft_rows,
        "prefill_rows": FEW_PREFILL_ROWS,
        "num_seqs": 1,
    }
    yield workload
    for name, floor in least.items():
        while (number := getattr(workload, name)) > floor:
            workload = replace(workload, **{name: max(number // 2, floor)})
            yield workload


def fit(
    model: ModelNumbers, drafters: Sequence[DrafterNumbers], workload: Workload, budget: int
) -> MemoryPlan | None:
    """Find the largest drafter, and with it the largest workload, of which one full sequence fits; None for none.

    The rest of the budget becomes blocks. Keys and values stay as they are asked for: in fewer bits they would say
    something else.
    """
    for drafter in drafters:
        for load in halved(model, workload):
            whole = plan(model, drafter, load)
            lacking = max(0, whole.total - budget)
            blocks = load.blocks + -lacking // whole.block_nbytes
            if blocks >= load.blocks_seq:
                fitting = plan(model, drafter, replace(load, num_blocks=blocks))
                if fitting.total <= budget:
                    return fitting
    return None


def drafting(model: ModelNumbers, drafter: DrafterNumbers, workload: Workload) -> MemoryPlan:
    """Return what takes the fewest bytes with this drafter, its whole drafts, and as many sequences at a time."""
    kept = (workload.num_seqs, workload.draft_rows)
    *_, load = (
        each for each in halved(model, workload) if (each.num_seqs, each.draft_rows) == kept
    )
    return plan(model, drafter, replace(load, num_blocks=load.blocks_seq))


def smallest(
    model: ModelNumbers, drafters: Sequence[DrafterNumbers], workload: Workload
) -> MemoryPlan:
    """Return what takes the fewest bytes: the last drafter and the last workload, one full sequence at a time."""
    *_, load = halved(model, workload)
    return plan(model, drafters[-1], replace(load, num_blocks=load.blocks_seq))
