"""`forerun bench chat`: long conversations in a fixed budget, and the time to the first token of each turn."""

from __future__ import annotations

from dataclasses import asdict

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams
from forerun.lab.output import publish


@opt.command()
@opt.engine(without=("max_num_seqs",), max_model_len=2048)
@opt.sampling("max_tokens", "seed", max_tokens=64, seed=0)
@click.option("--turns", default=20, help="Turns of every conversation.")
@click.option("--conversations", default=2, help="So many take turns; more than fit are evicted.")
@opt.as_json
def command(
    config: EngineConfig,
    params: SamplingParams,
    turns: int,
    conversations: int,
    as_json: bool,
) -> None:
    """Hold conversations in turn and say what of each was found again, and how long its first token took.

    With a memory budget that holds less than all of them, what was evicted is read again. Exits 1 if an answer differs
    from that of an engine with room for all, without drafting.
    """
    from forerun.cli import console
    from forerun.lab.bench import chat

    opt.check_least("turns", turns, 1)
    opt.check_least("conversations", conversations, 1)
    llm = opt.load(config, max_num_seqs=1)

    measured = chat.run(llm, params, turns, conversations, "talking")
    roomy = llm.within(None, "none", max_num_seqs=conversations)
    again = chat.run(roomy, params, turns, conversations, "again with room for all")
    different = sum(a.answer != b.answer for a, b in zip(measured, again, strict=True))
    rows = [{k: v for k, v in asdict(turn).items() if k != "answer"} for turn in measured]
    document = console.environment(config.model, llm.drafter_spec.text(), llm.model.num_threads)
    document |= {"budget_bytes": config.budget_nbytes, "turns": rows, "different": different}
    publish(document, lambda: chat.show(measured, different), as_json=as_json, fails=different > 0)
