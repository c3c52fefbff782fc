"""Drafted against plain through a pipeline whose link is slow: a delay before and behind every hop.

    torchrun --nproc-per-node 2 -m dev.pipeline_latency MODEL [--tokens 64]

Takes turns: every prompt plain, then drafted, at each latency. Prints tok/s, the ratio, and tau.
"""

from __future__ import annotations

import argparse
import os
import time

from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.engine.stats import SpecStats
from forerun.hub.prompt_sets import read
from forerun.llm import LLM
from forerun.parallel.load import follow
from forerun.parallel.pipeline import Pipeline
from forerun.parallel.place import Place

DELAYS_MS = (0.0, 0.1, 1.0, 10.0)
KINDS = ("summary", "edit", "json")


def main() -> None:
    """Measure and print a line for each latency and kind of prompt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prompts", type=int, default=2, help="of a kind")
    given = parser.parse_args()
    place = Place.of()
    config = EngineConfig(model=given.model, threads=1, pipeline_parallel_size=place.size)
    if place.rank > 0:
        follow(config)
        return
    llm = LLM(config)
    plain, model = llm.with_drafter("none"), llm.model
    assert isinstance(model, Pipeline)
    params = SamplingParams(max_tokens=given.tokens, temperature=0.0, ignore_eos=True)
    tasks = [task for task in read("builtin", None) if task.id.split("-")[0] in KINDS]
    for delay in DELAYS_MS:
        model.delay_s = delay / 1e3
        for kind in KINDS:
            own = [task for task in tasks if task.id.startswith(kind)][: given.prompts]
            seconds, answers = {plain: 0.0, llm: 0.0}, {plain: [], llm: []}
            for task in own:
                for which in (plain, llm):
                    chat = [{"role": "user", "content": task.turns[0]}]
                    which.generate([chat], SamplingParams(max_tokens=1))  # the prompt is read
                    start_s = time.perf_counter()
                    answers[which] += [which.generate([chat], params)[0].outputs[0]]
                    seconds[which] += time.perf_counter() - start_s
            same = [a.token_ids for a in answers[plain]] == [a.token_ids for a in answers[llm]]
            tokens = sum(len(a.token_ids) for a in answers[plain])
            tau = SpecStats.total(a.stats for a in answers[llm]).tau
            rates = tokens / seconds[plain], tokens / seconds[llm]
            line = f"{delay} ms, {kind}: {rates[0]:.1f} -> {rates[1]:.1f} tok/s, {rates[1] / rates[0]:.2f}x, "
            os.write(1, f"{line}tau {tau:.2f}, identical {same}\n".encode())


if __name__ == "__main__":
    main()
