"""What a configuration really takes, by component: run by tests in a process of its own.

    python resident.py '{"model": ..., "drafter": ..., "max_num_seqs": 2, "max_model_len": 256}'

prints one line of JSON: measured and planned bytes, by smaps, and what the process held with its modules alone.
"""

from __future__ import annotations

import json
import mmap
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from forerun import LLM

PAGE = mmap.PAGESIZE


def resident() -> int:
    """Bytes, with what is freed given back."""
    from forerun.system.device import return_freed

    return_freed()
    return rollup("Rss")


def rollup(field: str) -> int:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(f"{field}:"))


def peak() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def resident_of(first: int, nbytes: int) -> int:
    """Of a range of addresses, page by page: neighbouring mappings may be one in smaps."""
    pages = range(first // PAGE, -(-(first + nbytes) // PAGE))
    with open("/proc/self/pagemap", "rb") as file:
        file.seek(8 * pages.start)
        entries = np.frombuffer(file.read(8 * len(pages)), np.uint64)
    return PAGE * int((entries >> np.uint64(63)).sum())


def kv_nbytes(llm: LLM) -> int:
    memory = llm.engine.cache.native.memory()
    arrays = memory if isinstance(memory, tuple) else (memory,)
    return sum(resident_of(array.ctypes.data, array.nbytes) for array in arrays)


def main(options: dict[str, object]) -> dict[str, Any]:

    from forerun import LLM
    from forerun.core.config import EngineConfig
    from forerun.drafters.base.spec import DrafterSpec
    from forerun.engine import loaded
    from forerun.engine.planner import Planner
    from forerun.model.loader import load_model
    from forerun.system.device import choose_device, process_nbytes

    process = process_nbytes()
    run_tiny()
    measured = {"program": resident()}
    measured["tokenizer"] = tokenizer_nbytes(str(options["model"]))

    parts: dict[str, int] = {}

    build = DrafterSpec.build

    def measured_build(self, target, *known):
        start = resident()
        drafter = build(self, target, *known)
        parts["drafter"] = resident() - start  # the whole one's comes last
        return drafter

    def measured_load(*args, **options):
        resident()
        start = rollup("Anonymous")  # the file's own pages go when the checkpoint is closed
        model = load_model(*args, **options)
        resident()
        parts.setdefault("weights", rollup("Anonymous") - start)  # the first is the target
        return model

    loaded.load_model = measured_load
    DrafterSpec.build = measured_build
    llm = LLM(**options)
    start = resident()
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # the peak begins anew
    run(llm)
    measured |= parts
    measured["kv"] = kv_nbytes(llm)
    measured["scratch"] = llm.model.runtime.nbytes()
    measured["run"] = peak() - start - measured["kv"]
    measured["total"] = peak()
    chosen = Planner.of(EngineConfig(**options), choose_device("cpu")).plan()
    planned = {**chosen.components, "total": chosen.total}
    return {"measured": measured, "planned": planned, "process": process}


def run(llm: LLM) -> None:
    """Full sequences, greedy and sampled, and what the drafter learns of them."""
    from forerun import SamplingParams

    length, count = llm.max_len - 40, llm.config.max_num_seqs
    words = [
        token for i in range(400) for token in llm.encode(f"Line {i} of a long and dull poem. ")
    ]
    prompts = [{"prompt_token_ids": (words[i * 11 :] * 9)[:length]} for i in range(count)]
    for temperature in (0.0, 1.0):
        llm.generate(
            prompts,
            SamplingParams(temperature=temperature, seed=1, max_tokens=39, ignore_eos=True),
        )


def tokenizer_nbytes(model: str) -> int:
    """Of one that has been used."""
    from forerun.hub.names import resolve
    from forerun.weights.checkpoint import open_checkpoint

    before = resident()
    checkpoint = open_checkpoint(resolve(model))
    tokenizer = checkpoint.tokenizer()
    for i in range(300):
        tokenizer.encode(f"some words {i} of a text {i}")
    del checkpoint
    return resident() - before


def run_tiny() -> None:
    """What of Python is loaded when it is first used."""
    from forerun.core.config import EngineConfig
    from forerun.core.params import SamplingParams
    from forerun.drafters.base.contract import Target
    from forerun.drafters.base.spec import DrafterSpec
    from forerun.engine.engine import Engine
    from tests.tiny import tiny_model

    model = tiny_model(vocab_size=64)
    cache = model.new_cache(2, 128)
    drafter = DrafterSpec.of("suffix").build(Target(model, None, 2, 128, cache))
    engine = Engine(model, cache, drafter, EngineConfig(seed=0))
    for temperature in (0.0, 1.0):
        for i in range(2):
            params = SamplingParams(temperature=temperature, max_tokens=20, logprobs=1)
            engine.add([1, 2, 3, 1, 2, 3, 1, 2, i], params)
        while engine.has_work:
            engine.step()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
