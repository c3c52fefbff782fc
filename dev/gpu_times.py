"""The time of the matrix kernel on a card by the shape of its tiles, of an 8B Llama: python -m dev.gpu_times."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial

MATRICES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Outputs and inputs of an 8B Llama's."""
LAYERS, REPEATS, CACHE_NBYTES = 32, 20, 200 << 20


def seconds(run: Callable[[], None]) -> float:
    """Return the median of some runs between events, after three for nothing."""
    import torch

    for _ in range(3):
        run()
    taken = []
    for _ in range(REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        taken.append(first.elapsed_time(last) / 1e3)
    return sorted(taken)[REPEATS // 2]


def settings(form: str, num_out: int, num_in: int) -> Iterator[tuple[float, int, int, int, int]]:
    """Yield seconds, bytes, tile width, warps and stages of what compiles; of copies that no cache holds."""
    import torch

    from forerun.gpu import matrices
    from forerun.gpu.matrices import Matrix, Rows
    from forerun.weights.codes import FORMATS

    made = [Matrix.blank(FORMATS[form], num_out, num_in, None, False, "cuda")]
    made += [
        Matrix.blank(FORMATS[form], num_out, num_in, None, False, "cuda")
        for _ in range(CACHE_NBYTES // made[0].nbytes())
    ]
    rows, out = Rows.of_width(num_in, "cuda"), torch.zeros(matrices.ROWS, num_out, device="cuda")
    turn = itertools.cycle(made)
    for width, warps, stages in itertools.product((16, 32, 64, 128), (1, 2, 4, 8), (2, 4, 6)):
        matrices.LAUNCH = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}
        try:
            taken = seconds(lambda block=width: next(turn).multiply(rows, 16, out, block=block))
        except Exception as error:  # of a setting that does not fit the card
            print(f"  {width} {warps} {stages}: {type(error).__name__}", file=sys.stderr)
            continue
        yield taken, made[0].nbytes(), width, warps, stages


def main() -> None:
    """Print the three fastest settings of each matrix, and the sum of a pass beside its bytes at the copy's speed."""
    import torch

    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    speed = 2 * source.numel() / seconds(partial(torch.empty_like(source).copy_, source))
    print(f"{torch.cuda.get_device_name()}: copies {speed / 1e9:.0f} GB/s")
    for form in ("q4_1", "q4_k", "q6_k"):
        total = nbytes = 0.0
        for name, shape in MATRICES.items():
            found = sorted(settings(form, *shape))
            for taken, size, width, warps, stages in found[:3]:
                rate = f"{taken * 1e6:8.1f} us {size / taken / 1e9:7.0f} GB/s"
                print(f"{form} {name:8} {rate}  width {width} warps {warps} stages {stages}")
            total, nbytes = total + LAYERS * found[0][0], nbytes + LAYERS * found[0][1]
        print(
            f"{form}: {LAYERS} layers {total * 1e3:.2f} ms, {total * speed / nbytes:.2f} times their bytes"
        )


if __name__ == "__main__":
    main()
