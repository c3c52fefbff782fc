"""What flattened weights are worth where arithmetic is the limit: against int4 groups and against torch in bf16.

    .venv/bin/python -m dev.flat_speed [MODEL] [--rounds N] [--threads N]

MODEL gives the shapes (a GGUF file of 4-bit groups, such as the default model); the flattened weights are random, rows
1 % wider. All take turns; a figure is a median, a ratio the median of the rounds' own. Three tables:

- the linear layers of a block on 2048 rows, without anything between them, torch in bf16 and fp32 beside them;
- whole passes without the head, a prompt of 2048 tokens and 16 of 128, transformers in bf16 beside them;
- bytes of the block's weights and of the rows that its linear layers read, fp16 against codes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median

import numpy as np
import torch
from torch import Tensor

from forerun.core.batch import Batch, Segment
from forerun.core.config import DEFAULT_MODEL
from forerun.hub.names import resolve
from forerun.lab.bench.kernels import in_turns
from forerun.model.backends import native
from forerun.model.config import ModelConfig
from forerun.model.loader import read_config, stored_weights
from forerun.model.model import Model
from forerun.torch.backend import set_threads
from forerun.weights.checkpoint import open_checkpoint
from forerun.weights.codes import FORMATS, Codes
from forerun.weights.flat import FlatRows
from forerun.weights.stored import StoredTensor

ROWS, WIDER = 2048, 0.01
CASES = {"2048 tokens": (1, 2048), "16 x 128": (16, 128)}
Weights = Mapping[str, StoredTensor]


def flattened(weights: Weights, bits: int) -> dict[str, StoredTensor]:
    """The same shapes, the blocks' matrices with random codes."""

    def random_codes(shape: tuple[int, ...]) -> Codes:
        random, most = np.random.default_rng(shape[1]), 2 ** (bits - 1) - 1
        pieces = np.where(random.random(shape[1]) < WIDER, 2, 1).astype(np.int32)
        rows = FlatRows(np.full(shape[1], 0.05, np.float32), pieces, 127, "spill")
        codes = random.integers(-most, most + 1, shape).astype(np.int8)
        return Codes(codes, np.full((shape[0], 1), 1e-4, np.float32), flat=rows)

    def of(name: str, stored: StoredTensor) -> StoredTensor:
        if not name.startswith("layers.") or len(stored.shape) != 2:
            return stored
        codes, nothing = random_codes(stored.shape), np.zeros((1, 1), np.uint8)
        return StoredTensor(name, stored.shape, FORMATS[f"q{bits}_c"], nothing, lambda: codes)

    return {name: of(name, stored) for name, stored in weights.items()}


def seconds(action: Callable[[], object]) -> Callable[[], float]:
    """Does it once and says how long it took."""

    def timed() -> float:
        start_s = time.perf_counter()
        action()
        return time.perf_counter() - start_s

    return timed


def report(timers: Mapping[str, Callable[[], float]], rounds: int) -> None:
    """A line for each: its median, and how many times as long as each of the flattened it takes."""
    *_, found = in_turns(timers, rounds)
    for name, mine in found.items():
        ratios = [
            f"{median(a / b for a, b in zip(mine, found[flat], strict=True)):5.2f}"
            for flat in ("q4_c", "q8_c")
        ]
        print(
            f"  {name:18} {median(mine) * 1e3:8.1f} ms   over q4_c {ratios[0]}   q8_c {ratios[1]}"
        )


def linear_timers(models: Mapping[str, Model], weights: Weights) -> dict[str, Callable[[], float]]:
    """Of a block's linear layers on ROWS random rows."""
    shapes = {
        name: stored.shape
        for name, stored in weights.items()
        if name.startswith("layers.0.") and len(stored.shape) == 2
    }
    rows = {width: torch.randn(ROWS, width) for width in {shape[1] for shape in shapes.values()}}

    def ours(model: Model) -> Callable[[], None]:
        assert isinstance(model, native.NativeDecoder)
        outs = {name: np.zeros((64, shape[0]), np.float32) for name, shape in shapes.items()}

        def run() -> None:
            for name, shape in shapes.items():
                for start in range(0, ROWS, 64):
                    model.native.apply(name, rows[shape[1]][start : start + 64].numpy(), outs[name])

        return run

    def theirs(dtype: torch.dtype) -> Callable[[], None]:
        pairs = [(rows[k].to(dtype), torch.randn(n, k).to(dtype)) for n, k in shapes.values()]

        def run() -> None:
            for x, weight in pairs:
                torch.nn.functional.linear(x, weight)

        return run

    actions = {name: ours(model) for name, model in models.items()}
    actions |= {"torch bf16": theirs(torch.bfloat16), "torch fp32": theirs(torch.float32)}
    return {name: seconds(action) for name, action in actions.items()}


def pass_timers(models: Mapping[str, Model], ids: Tensor) -> dict[str, Callable[[], float]]:
    """Of passes over new texts (B, T), without the head."""
    config = next(iter(models.values())).config

    def ours(model: Model) -> Callable[[], float]:
        def timed() -> float:
            cache = model.new_cache(len(ids), ids.shape[1])
            for text in ids.tolist():
                cache.open(text, reuse=False)
            segments = [Segment(i, 0, tuple(text)) for i, text in enumerate(ids.tolist())]
            return seconds(lambda: model.forward(Batch(tuple(segments)), cache))()

        return timed

    theirs = _transformers(config)

    @torch.no_grad()
    def other() -> None:
        theirs(ids)

    timers = {name: ours(model) for name, model in models.items()}
    return {**timers, "transformers bf16": seconds(other)}


def _transformers(config: ModelConfig) -> Callable[[Tensor], object]:
    """A random llama of these sizes, without the head."""
    from transformers import LlamaConfig, LlamaModel

    sizes = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_position,
    )
    return LlamaModel(sizes).to(torch.bfloat16).eval()


def sizes(weights: Weights) -> Iterator[str]:
    """Bytes of a block's matrices and of what they read for ROWS rows: fp16, and flattened with 4 or 8 bits."""
    shapes = [
        stored.shape
        for name, stored in weights.items()
        if name.startswith("layers.0.") and len(stored.shape) == 2
    ]
    read = ROWS * sum(k for _, k in shapes)
    whole = sum(n * k for n, k in shapes)
    for bits in (4, 8):
        flat = (whole * bits / 8 + 4 * sum(n for n, _ in shapes)) + (1 + WIDER) * read
        with_rows = 2 * (whole + read) / flat
        yield f"  {bits} bits: weights {16 / bits:.2f} times less, with rows {with_rows:.2f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None)
    given = parser.parse_args()
    threads = set_threads(given.threads)
    checkpoint = open_checkpoint(resolve(given.model))
    config, arch = read_config(checkpoint)
    weights: Weights = dict(stored_weights(checkpoint, arch, config))
    own = next(w.format.name for name, w in weights.items() if name == "layers.0.q")
    kinds = {own: weights, "q4_c": flattened(weights, 4), "q8_c": flattened(weights, 8)}
    models = {
        name: native.load(config, kind.items(), num_threads=threads) for name, kind in kinds.items()
    }
    print(f"{given.model}, {threads} threads, {given.rounds} rounds")
    print(f"linear layers of a block, {ROWS} rows")
    report(linear_timers(models, weights), given.rounds)
    for name, (count, length) in CASES.items():
        print(f"a pass without the head, {name}")
        ids = torch.randint(0, config.vocab_size, (count, length))
        report(pass_timers(models, ids), given.rounds)
    print("bytes of a block's matrices, against fp16")
    print(*sizes(weights), sep="\n")


if __name__ == "__main__":
    main()
