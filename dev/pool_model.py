"""Says how long a pass takes on processors of many cores, from what can be counted: barriers, shares and bytes.

    python -m dev.pool_model                      # the table of docs/installing.md
    python -m dev.pool_model --json               # one line
    python -m dev.pool_model --check MODEL.gguf   # the model beside passes on this machine's threads

Phases and their pieces are those that the library plans (`NativeDecoder.phases`), for models without weights. A pass of
T threads takes

    t(T) = max(bytes / B, flops / (T F)) + sum over phases of c(T)
    c(T) = t_line (1 + sum over levels of the tree of its fan + min(T, 8))

c is a phase's end if all threads get there at once: each counts its own share, then eight after the other count at a
node, and eight read the line that lets them go. `t_line` is what a cache line takes from one core to another. A server
processor is assumed: B and F of the table, in bytes and operations a second.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from forerun.lab.bench import kernels
from forerun.model.backends.native import NativeDecoder
from forerun.model.config import ExpertsConfig, LayerConfig, ModelConfig
from forerun.model.shapes import flops_per_token

THREADS = 1, 2, 4, 8, 16, 32, 48, 64, 96, 128
FAN = 8
LINE_S = 80e-9
"""Between cores of a server processor: measured ones are said to take 50 to 100 ns."""
BANDWIDTH, FLOPS = 300e9, 60e9
"""Bytes a second of a socket with eight channels of DDR5-4800, and int8 operations a second of a core."""
BYTES_A_THREAD = 16 << 10
"""That a thread reads of a phase, at least, or it takes no part (kThreadNbytes in csrc/model/model.h)."""
BYTES_A_WEIGHT = 0.56
"""Of 4-bit groups of 32 with a scale and a minimum."""
LLAMA_CPP_NODES, LLAMA_CPP_PRODUCTS = 17, 7
"""A dense layer's graph in llama.cpp: two norms with their weights (4), q, k, v (3), two rotations, two cache writes,
attention, o, two additions, gate, up, gated activation less one that is fused, down; threads meet after each, and once
more within each product, when its input is quantized (ggml-cpu.c, b9860)."""

_BASE = ModelConfig("llama", 49_152, 576, 1536, 30, 9, 3, 64, 1 << 17, rope=None, tied_head=True)
_MOE = replace(
    _BASE,
    vocab_size=50_304,
    hidden_size=2048,
    intermediate_size=1024,
    num_layers=16,
    num_heads=16,
    num_kv_heads=16,
    head_dim=128,
)
SHAPES = {
    "SmolLM2-135M": _BASE,
    "Qwen2.5-1.5B": replace(
        _BASE, vocab_size=151_936, hidden_size=1536, intermediate_size=8960, num_layers=28,
        num_heads=12, num_kv_heads=2, head_dim=128,
    ),
    "Llama-3.1-8B": replace(
        _BASE, vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_layers=32,
        num_heads=32, num_kv_heads=8, head_dim=128,
    ),
    "OLMoE-1B-7B": replace(
        _MOE,
        layers=(LayerConfig(None, experts=ExpertsConfig(64, 8, 1024), has_mlp=False),) * 16,
    ),
}  # fmt: skip


def phases(config: ModelConfig, num_threads: int, rows: int = 1, context: int = 0) -> list[int]:
    """Return the pieces of each phase of a pass, its rows one sequence's above `context` tokens."""
    decoder = NativeDecoder(config, num_threads=num_threads, isa="portable")
    return kernels.phases(decoder, kernels.Case(1, rows, context))


def shares(num_pieces: int, num_threads: int) -> tuple[int, int]:
    """Return how many threads get a share of a phase, and the pieces of the largest one (csrc/model/pool.h)."""
    most = -(-num_pieces // num_threads)
    return -(-num_pieces // most), most


def barrier_s(num_threads: int, line_s: float = LINE_S) -> float:
    """Return the seconds of c(T)."""
    lines, count = 1 + min(num_threads, FAN), num_threads
    while count > 1:
        lines += min(count, FAN)
        count = -(-count // FAN)
    return line_s * lines if num_threads > 1 else 0.0


def scratch_nbytes(config: ModelConfig, num_threads: int, context: int = 1 << 15) -> int:
    """Return the bytes of scratch that attention takes at most in a full context."""
    decoder = NativeDecoder(config, num_threads=num_threads, isa="portable")
    return decoder.attention_nbytes(decoder.new_cache(1, context))


@dataclass(frozen=True)
class Pass:
    """A pass of one row, on a number of threads."""

    num_phases: int
    memory_s: float
    compute_s: float
    barriers_s: float

    @classmethod
    def of(cls, config: ModelConfig, num_threads: int, context: int = 128) -> Pass:
        """Model a pass of the assumed processor."""
        ops, nbytes = flops_per_token(config, context), flops_per_token(config) / 2 * BYTES_A_WEIGHT
        planned = phases(config, num_threads, context=context)
        num_active = min(num_threads, max(FAN, int(nbytes / len(planned) / BYTES_A_THREAD)))
        count = len(planned) + 1  # the head is one more
        return cls(
            count,
            nbytes / BANDWIDTH,
            ops / (num_active * FLOPS),
            count * barrier_s(num_active),
        )

    @property
    def seconds(self) -> float:
        """Of all of it."""
        return max(self.memory_s, self.compute_s) + self.barriers_s

    @property
    def share(self) -> float:
        """Of the time, what the limit alone, memory or arithmetic, would take."""
        return max(self.memory_s, self.compute_s) / self.seconds


def documents() -> dict[str, object]:
    """Return all that is printed, as JSON values."""
    config = SHAPES["Qwen2.5-1.5B"]
    passes = {
        name: {
            t: {
                "phases": p.num_phases,
                "ms": round(p.seconds * 1e3, 3),
                "limit_share": round(p.share, 3),
                "barrier_share": round(p.barriers_s / p.seconds, 3),
            }
            for t in THREADS
            for p in (Pass.of(shape, t),)
        }
        for name, shape in SHAPES.items()
    }
    return {
        "passes": passes,
        "phases": passes["Qwen2.5-1.5B"][16]["phases"],
        "llama_cpp_barriers": (LLAMA_CPP_NODES + LLAMA_CPP_PRODUCTS) * config.num_layers,
        "scratch_mb": {t: round(scratch_nbytes(config, t) / 1e6, 2) for t in THREADS},
    }


def show(document: dict[str, object]) -> None:
    """Print the table as Markdown."""
    print("| one row | barriers | " + " | ".join(f"{t} threads" for t in THREADS[3:]) + " |")
    print("|---|---|" + "---|" * len(THREADS[3:]))
    passes = document["passes"]
    assert isinstance(passes, dict)
    for name, cells in passes.items():
        row = (f"{cells[t]['ms']} ms, {cells[t]['limit_share']:.0%}" for t in THREADS[3:])
        print(f"| {name} | {cells[16]['phases']} | " + " | ".join(row) + " |")
    print(f"\nllama.cpp, Qwen2.5-1.5B: about {document['llama_cpp_barriers']} barriers")
    print(f"scratch at 32,768 tokens of it, MB by threads: {document['scratch_mb']}")


def line_seconds(num_threads: int) -> float:
    """Measure what makes c(T) the seconds that a phase takes here longer than its pieces."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pool_barrier"
        sources = ["csrc/platform.cpp", "csrc/model/pool.cpp", "dev/pool_barrier.cpp"]
        flags = ["-std=c++20", "-O2", "-pthread", f"-I{root / 'csrc'}", "-o", program]
        subprocess.run(["c++", *flags, *(root / source for source in sources)], check=True)
        ns = float(subprocess.check_output([program, str(num_threads)]))
    return ns / 1e9 / barrier_s(num_threads, 1.0)


def check(path: str, threads: Sequence[int] = (1, 2)) -> None:
    """Print passes of one row as they are and as the model has them, on this machine's bandwidth."""
    from forerun import LLM

    line_s = line_seconds(2)
    for num_threads in threads:
        llm = LLM(path, drafter="none", threads=num_threads, max_model_len=512)
        model = llm.engine.model
        assert isinstance(model, NativeDecoder)
        case = kernels.Case(1, 1, 64)
        *_, timings = kernels.measure(model, [case], rounds=40, others={})
        count = timings.phases[case] + 1
        modelled = median(timings.seconds[kernels.READ, None]) + count * barrier_s(
            num_threads, line_s
        )
        measured = median(timings.seconds[kernels.OURS, case])
        print(
            f"{num_threads} threads: {count} barriers, {measured * 1e3:.2f} ms, "
            f"modelled {modelled * 1e3:.2f}, {measured / modelled:.2f} of it"
        )


def main() -> None:
    """Print the table, the JSON line, or the check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--check", metavar="MODEL", help="measure passes of a file here")
    args = parser.parse_args()
    if args.check:
        check(args.check)
    elif args.json:
        print(json.dumps(documents()))
    else:
        show(documents())


if __name__ == "__main__":
    main()
