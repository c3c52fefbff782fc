"""What a quantizing job states and what it takes, in a process of its own: run by a test.

    python resident.py MODEL METHOD OUT

prints one line of JSON: stated and measured bytes over a bare `import torch`.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import torch


def main(model: str, method: str, out: str) -> dict[str, int]:
    gc.collect()
    from forerun.system.device import peak_nbytes, resident_nbytes, return_at_once, return_freed

    bare = resident_nbytes()
    from forerun.lab.quantize.flatten_job import FlattenJob
    from forerun.lab.quantize.grid import Grid
    from forerun.lab.quantize.round_job import Recipe, RoundJob
    from forerun.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(Path(model))
    if checkpoint.kind == "gguf":
        checkpoint.tokenizer()  # as to read texts
    random = torch.Generator().manual_seed(0)
    texts = torch.randint(0, 256, (12, 512), generator=random).tolist()
    job: RoundJob | FlattenJob
    if method == "flatten":
        job = FlattenJob(checkpoint, texts[:8], texts[8:], Path(out), {})
    else:
        recipe = Recipe(method, Grid(4, 64), "awq")  # type: ignore[arg-type]
        calibration = [] if method == "rtn" else texts[:8]
        job = RoundJob(checkpoint, calibration, texts[8:], Path(out), {}, recipe=recipe)
    return_at_once()
    return_freed()
    stated = resident_nbytes() + job.peak_nbytes()
    for _ in job.run():
        pass
    job.finish()
    return {"stated": stated - bare, "measured": peak_nbytes() - bare}


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(main(*sys.argv[1:])))
