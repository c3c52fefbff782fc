"""Types of the optional native extension; built from csrc/, absent where there was no C++ compiler."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from forerun.core.batch import Segment
from forerun.drafters.base.draft_head import Scores
from forerun.drafters.base.ngram.token_table import VerifiedTree
from forerun.drafters.dflash.config import BlockConfig
from forerun.drafters.eagle3.config import Eagle3Config
from forerun.model.config import ModelConfig, RecurrentConfig

def runnable_isas() -> list[str]: ...
def checked_kernels() -> list[str]: ...
def emulate_tiles(address: int) -> None: ...
def wrong_kernels(isa: str, broken: str = "") -> list[str]: ...
def peak(isa: str, num_rounds: int, is_float: bool = False) -> int: ...
def draw(logits: NDArray[np.float32], factor: float, key: int, isa: str = "auto") -> int: ...
def largest_scores(
    logits: NDArray[np.float32],
    tokens: NDArray[np.int32] | None,
    factor: float,
    key: int,
    k: int,
    isa: str = "auto",
) -> list[int]: ...
def gumbel(
    key: int, tokens: NDArray[np.int32], out: NDArray[np.float32], isa: str = "auto"
) -> None: ...
def read_bytes(bytes: NDArray[np.uint8]) -> int: ...
def evaluate(
    function: str, x: NDArray[np.float32], out: NDArray[np.float32], isa: str = "auto"
) -> None: ...
def weight_formats() -> list[dict[str, Any]]: ...
def unpack_blocks(
    format: str,
    rows: NDArray[np.uint8],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    offsets: NDArray[np.float32] | None,
) -> None: ...
def round_blocks(format: str, values: NDArray[np.float32], out: NDArray[np.uint8]) -> None: ...

class SuffixIndex:
    def __init__(self, max_depth: int, capacity: int | None = None) -> None: ...
    def extend(self, document: int, tokens: Sequence[int]) -> None: ...
    def occurrences(self, context: Sequence[int], most: int) -> list[tuple[int, int]]: ...
    def continuation(
        self,
        context: Sequence[int],
        score: float,
        most: int,
        num_nodes: int,
        factor: float,
        offset: float,
        min_token_prob: float,
        min_depth: int = 1,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...], float] | None: ...
    @property
    def num_tokens(self) -> int: ...

class LiveTable:
    def __init__(self, order: int, nbytes: int, most_age: int = ...) -> None: ...
    def learn(
        self, tokens: Sequence[int], likeliest: Sequence[int], probs: Sequence[float]
    ) -> None: ...
    def learn_trees(self, trees: Sequence[VerifiedTree]) -> None: ...
    def entries(self) -> bytes: ...
    @property
    def order(self) -> int: ...

class FileTable:
    def __init__(
        self, offsets: NDArray[np.uint32], data: NDArray[np.uint8], token_nbytes: int
    ) -> None: ...

class TreeNoise:
    def __init__(
        self,
        seed: int,
        stream: int,
        position: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        top_k: int = 0,
        spread: float = ...,
    ) -> None: ...
    def see(self, depth: int, probabilities: Mapping[int, float]) -> dict[int, float]: ...

def grow_tree(
    context: Sequence[int],
    file: FileTable | None,
    live: LiveTable,
    indexes: Sequence[SuffixIndex],
    num_nodes: int,
    min_chance: float,
    noise: TreeNoise | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]: ...
def grow_trees(
    texts: Sequence[SuffixIndex],
    shared: SuffixIndex,
    file: FileTable | None,
    live: LiveTable,
    num_nodes: Sequence[int],
    min_chance: float,
    noises: Sequence[TreeNoise | None] = (),
) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]: ...

class DecayedMeans:
    def __len__(self) -> int: ...
    def record(self, values: Sequence[float], less: float = 0.0, count: int = 0) -> None: ...
    def given(self, priors: Sequence[float], weight: float) -> list[float]: ...
    def best_prefix(
        self, priors: Sequence[float], weight: float, costs: CostCurve, price: float
    ) -> tuple[int, float]: ...

class CostCurve:
    def __init__(self, points: Mapping[int, float] = {}) -> None: ...
    @property
    def points(self) -> dict[int, float]: ...
    def record(self, size: int, cost: float) -> None: ...
    def predict(self, size: float) -> float: ...
    def v(self, rows: float) -> float: ...
    def knows(self, size: int) -> bool: ...

class AcceptanceRates:
    def paths(self, parents: Sequence[int], confidence: Sequence[float] | None) -> list[float]: ...
    def record(
        self,
        tokens: Sequence[int],
        parents: Sequence[int],
        confidence: Sequence[float] | None,
        emitted: Sequence[int],
    ) -> None: ...

def best_cut(
    paths: Sequence[Sequence[float]],
    passes: CostCurve,
    num_seqs: int,
    row_cost: float,
    price: float,
) -> tuple[list[int], float]: ...

class Cache:
    def __init__(
        self,
        heads: Sequence[tuple[int, int]],
        num_slots: int,
        max_len: int,
        form: str,
        num_blocks: int = 0,
        recurrent: Sequence[RecurrentConfig | None] = (),
        hidden_size: int = 0,
        num_states: int = 0,
        draft_rows: int = ...,
        value_dims: Sequence[int] = (),
    ) -> None: ...
    block_rows: ClassVar[int]
    @property
    def block_nbytes(self) -> int: ...
    def place(self, slot: int, index: int, block: int) -> None: ...
    def move(self, slot: int, rows: Sequence[int], start: int) -> None: ...
    def copy_block(self, source: int, target: int) -> None: ...
    def memory(self) -> NDArray[np.uint8]: ...
    def block(self, block: int) -> NDArray[np.uint8]: ...
    @property
    def state_nbytes(self) -> int: ...
    @property
    def rows_nbytes(self) -> int: ...
    def place_state(self, slot: int, state: int, rows: int) -> None: ...
    def clear_state(self, state: int) -> None: ...
    def copy_state(self, source: int, target: int) -> None: ...
    def drop_state(self, state: int) -> None: ...
    def advance(self, runtime: Runtime, slot: int, rows: int) -> None: ...
    def state(self, state: int) -> NDArray[np.uint8]: ...
    def nbytes(self) -> int: ...

class Runtime:
    def __init__(self, isa: str, num_threads: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    def nbytes(self) -> int: ...

class Ranks:
    def __init__(
        self,
        rank: int,
        size: int,
        num_floats: int,
        memory: NDArray[np.uint8],
        gather: Callable[[NDArray[np.float32], int], None] | None,
    ) -> None: ...
    @staticmethod
    def nbytes(size: int, num_floats: int) -> int: ...
    def exchange(self, own: NDArray[np.float32], all: NDArray[np.float32]) -> None: ...

class _HasHead:
    def head(self, hidden: NDArray[np.float32], logits: NDArray[np.float32]) -> None: ...
    def topk(
        self,
        hidden: NDArray[np.float32],
        ids: NDArray[np.int64],
        values: NDArray[np.float32],
        log_sums: NDArray[np.float32] | None,
        logits: NDArray[np.float32] | None,
    ) -> None: ...
    def head_rows(
        self, hidden: NDArray[np.float32], ids: NDArray[np.int64], logits: NDArray[np.float32]
    ) -> None: ...

class Head(_HasHead):
    def unpack(self, out: NDArray[np.float32]) -> None: ...
    def nbytes(self) -> int: ...

class Decoder(_HasHead):
    def __init__(
        self, runtime: Runtime, config: ModelConfig, weights: Mapping[str, Sequence[int]]
    ) -> None: ...
    def set(
        self,
        name: str,
        format: str,
        num_in: int,
        rows: NDArray[np.uint8],
        bias: NDArray[np.float32] | None,
    ) -> None: ...
    def set_codes(
        self,
        name: str,
        format: str,
        codes: NDArray[np.int8],
        scales: NDArray[np.float32],
        mins: NDArray[np.float32] | None,
        bias: NDArray[np.float32] | None,
        order: NDArray[np.int32] | None = None,
    ) -> None: ...
    def set_flat(
        self,
        name: str,
        format: str,
        codes: NDArray[np.int8],
        scales: NDArray[np.float32],
        inverse: NDArray[np.float32],
        pieces: NDArray[np.int32],
        limit: int,
        uses_hadamard: bool,
        bias: NDArray[np.float32] | None,
    ) -> None: ...
    def set_blank(
        self,
        name: str,
        format: str,
        num_out: int,
        num_in: int,
        has_bias: bool,
        is_apart: bool = False,
    ) -> None: ...
    def set_norm(
        self, name: str, weight: NDArray[np.float32], bias: NDArray[np.float32] | None
    ) -> None: ...
    def packed(
        self, name: str
    ) -> tuple[str | None, tuple[int, ...], NDArray[np.uint8], NDArray[np.uint8]]: ...
    def set_attention(
        self, layer: int, window: int, frequencies: NDArray[np.float32], factor: float
    ) -> None: ...
    def set_ranks(self, ranks: Ranks) -> None: ...
    def check(self) -> None: ...
    def embed(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None: ...
    def forward(
        self,
        cache: Cache,
        segments: Sequence[Segment],
        inputs: NDArray[np.float32] | None,
        hidden: NDArray[np.float32],
        aux_layers: Sequence[int],
        aux: NDArray[np.float32],
    ) -> None: ...
    def first_head_rows(self, num_rows: int) -> Head: ...
    def head_part(self, ids: NDArray[np.int64]) -> Head: ...
    def attention_nbytes(self, cache: Cache) -> int: ...
    def phases(self, cache: Cache, segments: Sequence[Segment]) -> list[int]: ...
    def unpack(self, name: str, out: NDArray[np.float32]) -> None: ...
    def apply(self, name: str, x: NDArray[np.float32], out: NDArray[np.float32]) -> None: ...
    def scratch_nbytes(
        self, cache: Cache, num_rows: int, num_nodes: int, head_rows: int
    ) -> int: ...
    def nbytes(self) -> int: ...

class DraftNetwork:
    def set(self, name: str, format: str, num_in: int, rows: NDArray[np.uint8]) -> None: ...
    def set_norm(
        self,
        name: str,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        eps: float,
    ) -> None: ...
    def set_tokens(self, ids: Sequence[int]) -> None: ...
    def take_head(self) -> None: ...
    def set_temperatures(self, temperatures: Sequence[float]) -> None: ...
    def check(self) -> None: ...
    def unpack(self, name: str, out: NDArray[np.float32]) -> None: ...
    def nbytes(self) -> int: ...

class ComputedNetwork(DraftNetwork):
    def __init__(
        self,
        runtime: Runtime,
        target: Decoder,
        max_depth: int,
        sees_depth_alone: bool,
        compute: Callable[
            [NDArray[np.int32]], tuple[NDArray[np.float32], NDArray[np.float64] | None]
        ],
    ) -> None: ...

class TextNGramModel:
    def __init__(
        self,
        texts: Sequence[SuffixIndex],
        shared: SuffixIndex,
        file: FileTable | None,
        live: LiveTable,
    ) -> None: ...

class Step:
    @property
    def sequence(self) -> int: ...
    @property
    def parent(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def depth(self) -> int: ...
    @property
    def path(self) -> list[int]: ...

class Partner:
    def __init__(
        self,
        who: DraftNetwork | Callable[[int, Sequence[Step]], Sequence[Scores]],
        num_steps: Sequence[int],
        min_doubt: float = 0.0,
        share: float = 1.0,
        temperature: float = 1.0,
        knows_paths: bool = False,
        rows: Sequence[int] | None = None,
        states: NDArray[np.float32] | None = None,
    ) -> None: ...

class Trace:
    def judged(self, tokens: Sequence[int]) -> list[tuple[int, float, float, float, int]]: ...
    def teach(self, tokens: Sequence[int], partners: Sequence[PartnerValue]) -> None: ...

class PartnerValue:
    MOST_DOUBT: ClassVar[float]
    def __init__(self, share: float, gain: float) -> None: ...
    @property
    def share(self) -> float: ...
    def learn(self, steps: Sequence[tuple[int, float, float, float, int]]) -> None: ...
    def doubt(self, least: float, cost: float | None = None) -> float: ...

def grow(
    partners: Sequence[Partner],
    tokens: Sequence[int],
    num_nodes: Sequence[int],
    min_chance: float,
    ngrams: TextNGramModel | None = None,
    noises: Sequence[TreeNoise | None] = (),
) -> tuple[
    list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]], list[list[int]], list[Trace]
]: ...

class RecurrentNetwork(DraftNetwork):
    def __init__(
        self,
        runtime: Runtime,
        target: Decoder,
        inner_size: int,
        num_predict: int,
        max_depth: int,
        is_lstm: bool,
        scales_input: bool,
    ) -> None: ...
    def keep_mapped(self) -> None: ...

def token_weight(inner_size: int, num_predict: int) -> float: ...

class MedusaNetwork(DraftNetwork):
    def __init__(
        self, runtime: Runtime, target: Decoder, num_heads: int, num_layers: int
    ) -> None: ...

class LayeredNetwork(DraftNetwork):
    def set_rope(self, frequencies: NDArray[np.float32]) -> None: ...
    def clear(self, slot: int) -> None: ...
    def reuse(self, slot: int, source: int, rows: int) -> None: ...
    def prefill(self, slot: int, tokens: Sequence[int], states: NDArray[np.float32]) -> None: ...

class BlockNetwork(LayeredNetwork):
    def __init__(
        self, runtime: Runtime, target: Decoder, config: BlockConfig, num_slots: int, max_len: int
    ) -> None: ...

class EagleNetwork(LayeredNetwork):
    def __init__(
        self, runtime: Runtime, target: Decoder, config: Eagle3Config, num_slots: int, max_len: int
    ) -> None: ...
