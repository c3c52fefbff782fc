"""The kernels' scratch memory of a pass, in bytes: what csrc/model/plan.cpp lays out, known before weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forerun.core.config import Precision
from forerun.model.cache.blocks import BLOCK_ROWS, blocks_of
from forerun.model.config import LayerConfig, ModelConfig, RecurrentConfig

MAX_PAIRS = 24
"""Rows and query heads that attend together (csrc/model/types.h)."""
STATE_ROWS = 16
"""Rows that read a recurrent state together (csrc/model/recurrence.h)."""
THREAD_NBYTES = 4 * 2 * 32 * 32
"""Bytes of a thread at least: a group of 32 rows, twice (csrc/model/types.h)."""
CODED: tuple[Precision, ...] = ("int8", "k8v4", "int4")
"""Precisions whose keys are codes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassNumbers:
    """A pass, as far as its memory goes."""

    config: ModelConfig
    threads: int
    rows: int
    """Rows computed at a time."""
    head_rows: int
    """Rows whose likeliest tokens are wanted."""
    nodes: int
    """Nodes of a draft at most."""
    draft_rows: int
    """Rows of a draft that have room beside a recurrent state."""
    max_len: int
    """Positions of a sequence."""
    precision: Precision
    """Of keys and values."""


def scratch_nbytes(numbers: PassNumbers) -> int:
    """Return the bytes that the largest of a pass, a pass of few rows and its head takes."""
    config = numbers.config
    largest = max(
        _pass_nbytes(numbers, numbers.rows), _split_nbytes(numbers), _head_nbytes(numbers)
    )
    if numbers.precision not in CODED:
        return largest
    head_dim = max(dim for _, dim in _heads(config))
    return largest + numbers.rows * config.num_heads * (head_dim + 4 + 4 * -(-head_dim // 32))


def _layers(config: ModelConfig) -> Sequence[LayerConfig]:
    return [config.layer(i) for i in range(config.num_layers)]


def _heads(config: ModelConfig) -> set[tuple[int, int]]:
    """Return the different (heads of keys, dimension) of layers."""
    return {config.heads(i) for i in range(config.num_layers)}


def _pass_nbytes(numbers: PassNumbers, rows: int) -> int:
    """Return the bytes of the rows of a pass and of what threads have for themselves (`Decoder::lay_out`)."""
    config = numbers.config
    mixers = [layer.recurrent for layer in _layers(config) if layer.recurrent is not None]
    inner = max(
        (layer.intermediate_size or config.intermediate_size) * layer.has_mlp
        for layer in _layers(config)
    )
    attended = config.num_heads * max(dim for _, dim in _heads(config))
    mixed = max((mixer.value_width or config.hidden_size for mixer in mixers), default=0)
    total = 4 * rows * (config.hidden_size + _projected_width(config, mixers))
    total += sum(
        _rows_nbytes(rows, width) for width in (config.hidden_size, max(attended, mixed), inner)
    )
    if config.norms != "before":
        total += 4 * rows * config.hidden_size
    if config.per_layer_width is not None:
        total += 4 * rows * config.num_layers * config.per_layer_width
        total += _rows_nbytes(rows, config.per_layer_width)
    total += _experts_nbytes(config, rows) + _mixers_nbytes(numbers, mixers, rows)
    return total + numbers.threads * _thread_nbytes(numbers, mixers)


def _projected_width(config: ModelConfig, mixers: Sequence[RecurrentConfig]) -> int:
    """Return the numbers that a row is projected to at most, before attention or a recurrent state."""
    queries = config.num_heads * (1 + config.attention_gate)
    widest = max((queries + 2 * count) * dim for count, dim in _heads(config))
    for mixer in mixers:
        if mixer.kind == "conv":
            widest = max(widest, 3 * config.hidden_size)
            continue
        steps = 2 * -(-mixer.num_heads // 16) * 16  # rates and decays, in whole vectors
        widest = max(widest, mixer.num_channels(config.hidden_size) + mixer.value_width + steps)
    return widest


def _thread_nbytes(numbers: PassNumbers, mixers: Sequence[RecurrentConfig]) -> int:
    """Return the bytes of one thread: scores and sums of heads that attend, or rows that read a state."""
    head_dim = max(dim for _, dim in _heads(numbers.config))
    above = (numbers.nodes // BLOCK_ROWS + 2) * BLOCK_ROWS
    attention = MAX_PAIRS * (BLOCK_ROWS + above + 2 * head_dim)
    state = max(((mixer.key_dim + 2 * STATE_ROWS) * mixer.value_dim for mixer in mixers), default=0)
    inputs = numbers.config.num_layers * (numbers.config.per_layer_width or 0)
    return max(4 * attention, 4 * state, 4 * inputs, THREAD_NBYTES)


def _mixers_nbytes(numbers: PassNumbers, mixers: Sequence[RecurrentConfig], rows: int) -> int:
    """Return the bytes of what rows convolve, and of their scores with the rows beside a state."""
    config = numbers.config
    own = [mixer for mixer in mixers if mixer.kind != "conv"]
    channels = max((mixer.num_channels(config.hidden_size) for mixer in own), default=0)
    heads = max((mixer.num_key_heads * (1 + (mixer.kind == "delta")) for mixer in own), default=0)
    beside = -(-(BLOCK_ROWS + numbers.draft_rows) // 16) * 16
    experts = [layer.experts for layer in _layers(config)]
    gates = any(each is not None and each.gates_mlp for each in experts)
    return 4 * rows * (channels + heads * beside + gates)


def _experts_nbytes(config: ModelConfig, rows: int) -> int:
    """Return the bytes of what experts read and compute of each row that chose them (`Decoder::lay_out_experts`)."""
    experts = [layer.experts for layer in _layers(config) if layer.experts is not None]
    if not experts:
        return 0
    pairs = rows * max(each.num_active for each in experts)
    num_experts = max(each.num_experts for each in experts)
    slots = pairs + 7 * min(pairs, num_experts)  # an expert's rows begin at multiples of 8
    routed = 4 * (rows * -(-num_experts // 16) * 16 + 3 * pairs + 2 * slots + 3 * num_experts)
    inner = max(each.intermediate_size for each in experts)
    normed = 8 * rows * config.hidden_size if any(each.has_norms for each in experts) else 0
    gathered = _rows_nbytes(slots, config.hidden_size) + _rows_nbytes(slots, inner)
    return routed + gathered + normed


def _split_nbytes(numbers: PassNumbers) -> int:
    """Return the bytes of a pass of few rows, where threads share a row's keys (`Decoder::plan_attention`)."""
    return max(_split_layer_nbytes(numbers, *heads) for heads in _heads(numbers.config))


def _split_layer_nbytes(numbers: PassNumbers, num_kv_heads: int, head_dim: int) -> int:
    group = numbers.config.num_heads // num_kv_heads
    heads = min(group, MAX_PAIRS)
    units = num_kv_heads * -(-group // heads)  # of as many rows as attend together
    times = (4 * numbers.threads - 1) // units if numbers.threads > 1 else 0
    rows = times * (MAX_PAIRS // heads)
    states = times * units * blocks_of(numbers.max_len) * MAX_PAIRS
    return _pass_nbytes(numbers, rows) + states * (16 + 4 * head_dim)


def _head_nbytes(numbers: PassNumbers) -> int:
    """Return the head's bytes for rows whose likeliest tokens are wanted (csrc/model/head.cpp)."""
    config, rows = numbers.config, numbers.head_rows
    blocks = -(-config.vocab_size // 128)
    aside = 4 * numbers.threads * 64 * 128
    return _rows_nbytes(rows, config.hidden_size) + aside + rows * 8 * blocks


def _rows_nbytes(rows: int, width: int) -> int:
    """Return the bytes of rows as floats, and as int8 with scales and sums a group of 32."""
    whole = -(-rows // 8) * 8
    return 4 * rows * width + whole * -(-width // 32) * (32 + 4 + 4 + 8)
