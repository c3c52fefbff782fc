"""The controller on a clock without noise: real answers, real drafts, costs from a table.

    python -m dev.controller_sim record answers.jsonl.gz --prompts FILE ... [--guesser draft_model:...]
    python -m dev.controller_sim run answers.jsonl.gz [--drafter suffix] [--machine avx2] [--batch 1 4]

`record` lets a model answer prompts plainly, greedily and at temperature 1, and writes the tokens down;
and for each position, how many of the next tokens a drafter with weights (`--guesser`) would
have guessed. `run` decodes them again with a machine's table of costs (`tests/engine/recorded.py`).

It prints, for each category, tokens a unit of time over those of plain decoding: the best fixed
budget, found by trying all, and the controller's. Two runs give the same digits. Only for drafters
that need no model of their own and draw nothing, and for `recorded`, which makes the recorded guesses, also
behind another: `suffix++recorded`.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from forerun.core.params import SamplingParams
from forerun.core.types import EMPTY_DRAFT, Draft
from forerun.engine.controller import Controller, Fixed
from forerun.engine.sequence import SequenceStep
from tests.engine.recorded import AVX2, AVX512, MAX_GUESSES, Answer, World, read, speedups

MACHINES = {
    "avx2": AVX2,
    "vnni": AVX512,
}
"""What a pass over so many rows costs, in passes over one."""


class Listening(Controller):
    """A controller that asks for full drafts, notes them and lets none of them through."""

    def __init__(self) -> None:
        self.drafts: dict[int, Draft] = {}
        """By the number of tokens that were there."""

    def budgets(
        self, steps: Sequence[SequenceStep], num_others: int = 0, *, is_reading: bool = False
    ) -> None:
        """Everything, of one sequence."""
        (step,) = steps
        step.budget = MAX_GUESSES

    def trim(self, steps: Sequence[SequenceStep]) -> None:
        """Nothing."""
        (step,) = steps
        self.drafts[len(step.seq.generated)], step.draft = step.proposed, EMPTY_DRAFT


def record(path: Path, prompts: Sequence[str], model: str, guesser: str, length: int) -> None:
    """Answer all prompts of the files at both temperatures and write the answers down."""
    from forerun import LLM
    from forerun.hub.prompt_sets import read as read_prompts

    llm = LLM(model, drafter=guesser, controller=False, max_model_len=2048)
    found = [prompt for name in prompts for prompt in read_prompts(name)]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for temperature, (i, prompt) in ((t, p) for t in (0.0, 1.0) for p in enumerate(found)):
            llm.engine.proposer.controller = listening = Listening()
            params = SamplingParams(temperature=temperature, seed=i, max_tokens=length)
            (run,) = llm.submit([{"role": "user", "content": prompt.turns[0]}], params).runs
            while llm.engine.has_work:
                llm.engine.step()
            tokens = run.seq.generated
            right = "".join(
                str(_num_right(listening.drafts.get(n, EMPTY_DRAFT).tokens, tokens[n:]))
                for n in range(len(tokens))
            )
            start = run.seq.tokens[: run.seq.num_prompt]
            answer = Answer(prompt.id, prompt.category, temperature, start, tokens, right)
            file.write(json.dumps(asdict(answer)) + "\n")


def _num_right(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    pairs = zip(guesses, tokens, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(guesses), len(tokens)))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["record", "run"])
    parser.add_argument("answers", type=Path)
    parser.add_argument("--prompts", nargs="+", default=["builtin"])
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--guesser", default="none", help="the drafter that is recorded")
    parser.add_argument("--length", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--drafter", default="suffix:shared_tokens=0")
    parser.add_argument("--node", type=float, default=0.0, help="cost of a drafted token")
    parser.add_argument("--machine", choices=MACHINES, nargs="+", default=[*MACHINES])
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--most", type=int, default=7, help="largest fixed budget")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.action == "record":
        record(args.answers, args.prompts, args.model, args.guesser, args.length)
        return
    answers = read(args.answers, args.temperature)
    for machine in args.machine:
        world = World(args.drafter, MACHINES[machine], node=args.node)
        for size in args.batch:
            print(
                f"{args.drafter}, {machine}, batch {size}: best fixed (budget), controlled, of best"
            )
            fixed = [speedups(answers, world, size, Fixed(k)) for k in range(1, args.most + 1)]
            for category, found in speedups(answers, world, size).items():
                gains = [1.0, *(each[category] for each in fixed)]
                best = max(gains)
                print(
                    f"{category:16s} {best:.3f} ({gains.index(best)}) {found:.3f} {found / best:.3f}"
                )


if __name__ == "__main__":
    main()
