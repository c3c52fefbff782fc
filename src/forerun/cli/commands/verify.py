"""`forerun verify`: a test on your own prompts that drafting changes no token."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.params import SamplingParams

if TYPE_CHECKING:
    from forerun.cli.receipt import Difference
    from forerun.core.types import TaskPrompt
    from forerun.engine.outputs import CompletionOutput
    from forerun.llm import LLM, Prompt


@opt.command()
@opt.engine(  # more drafts prove more
    is_parallel=True, without=("controller", "max_num_seqs"), controller=False
)
@opt.sampling(seed=0, max_tokens=96)
@click.option(
    "--prompts", default="builtin", help="A .jsonl with turns, or a text file; default: ours."
)
@click.option("--limit", type=int, help="Only the first prompts.")
@click.option("--batch", "--batch-size", default=1, help="Prompts decoded together, drafted.")
@click.option(
    "--receipt",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what was answered here.",
)
@click.option(
    "--against",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with a receipt of another machine.",
)
@opt.as_json
def command(
    config: EngineConfig,
    params: SamplingParams,
    prompts: str,
    limit: int | None,
    batch: int,
    receipt: Path | None,
    against: Path | None,
    as_json: bool,
) -> None:
    """Decode every prompt with and without drafting, greedily or with a seed, and compare the token ids.

    Prompts go through the model's chat template; a model without one completes them as they are. Exits 1 on any
    difference, and where nothing was drafted.

    A receipt has hashes of the model, the prompts and the states of each layer, and the answers' tokens. On another
    machine, instruction set or device --against says whether all is the same, or the first prompt, position and layer
    that is not.
    """
    from forerun.cli import console
    from forerun.core.errors import ConfigError
    from forerun.engine.stats import SpecStats
    from forerun.hub.prompt_sets import read

    config = opt.for_this_rank(config)
    opt.check_least("batch", batch, 1)
    if params.seed is None:
        raise ConfigError("--seed -1 draws another seed each time: give one from 0")
    tasks, expected = read(prompts, limit), None if against is None else _read(against)
    llm = opt.load(config, max_num_seqs=batch)
    pairs, seconds = _decode_both_ways(llm, tasks, params, batch)
    is_stopped, tasks = len(pairs) < len(tasks), tasks[: len(pairs)]
    same = [plain.token_ids == drafted.token_ids for plain, drafted in pairs]
    different = [task.id for task, is_same in zip(tasks, same, strict=True) if not is_same]
    others = _compare(llm, params, tasks, pairs, receipt, expected)
    if as_json:
        measured = console.Measured(
            tokens=sum(len(drafted.token_ids) for _, drafted in pairs),
            seconds=seconds,
            stats=SpecStats.total(drafted.stats for _, drafted in pairs),
            draft_s=llm.engine.timers.draft_s,
            verify_s=llm.engine.timers.verify_s,
            ttft_s=None,
        )
        outcome = {"prompts": len(tasks), "identical": not different, "different": different}
        outcome |= {} if expected is None else {"against": [asdict(each) for each in others]}
        console.print_json(measured.document(llm) | outcome)
    else:
        _print(tasks, pairs)
    if expected is not None:
        _say(others, len(tasks), expected)
    is_vain = not is_stopped and _is_vain(llm, pairs)
    if is_vain:
        console.note(
            "nothing was drafted, so nothing was verified: raise --max-tokens, give other --prompts or -d",
            fg="red",
        )
    if is_stopped:
        console.note(f"stopped: only these {len(tasks)} prompts were compared", dim=True)
    if different or others or is_vain:
        raise click.exceptions.Exit(1)
    if is_stopped:
        raise KeyboardInterrupt


def _prompts(llm: LLM, tasks: list[TaskPrompt]) -> list[Prompt]:
    """Return the prompts as the model is asked, through its chat template if it has one."""
    is_chat, texts = llm.tokenizer.chat_template is not None, [task.turns[0] for task in tasks]
    return [opt.conversation(text) if is_chat else text for text in texts]


def _is_vain(llm: LLM, pairs: list[tuple[CompletionOutput, CompletionOutput]]) -> bool:
    """Return whether drafting was asked for and nothing was drafted."""
    return llm.drafter_spec.name != "none" and not any(
        drafted.stats.drafted for _, drafted in pairs
    )


def _read(path: Path) -> Mapping[str, Any]:
    """Read a receipt; what it is made with takes a while to import."""
    from forerun.cli import receipt

    return receipt.read(path)


def _compare(
    llm: LLM,
    params: SamplingParams,
    tasks: list[TaskPrompt],
    pairs: list[tuple[CompletionOutput, CompletionOutput]],
    receipt: Path | None,
    expected: Mapping[str, Any] | None,
) -> list[Difference]:
    """Write a receipt, and return how the answers differ from another; either where asked for."""
    from forerun.cli import receipt as receipts

    if receipt is None and expected is None:
        return []
    ids, answers = [task.id for task in tasks], [drafted.token_ids for _, drafted in pairs]
    ours = receipts.made(llm, params, ids, _prompts(llm, tasks), answers)
    if receipt is not None:
        receipt.write_text(json.dumps(ours, indent=1) + "\n", encoding="utf-8")
    return [] if expected is None else receipts.differences(ours, expected)


def _say(others: list[Difference], number: int, expected: Mapping[str, Any]) -> None:
    """Say how many answers are those of a receipt, and what is not."""
    from forerun.cli import console

    where = ", ".join(map(str, filter(None, expected["made_on"].values())))
    console.note(f"{number - len(others)} of {number} identical to the receipt (made on {where})")
    if others:
        console.note(str(others[0]), fg="red")


def _decode_both_ways(
    llm: LLM, tasks: list[TaskPrompt], params: SamplingParams, batch: int
) -> tuple[list[tuple[CompletionOutput, CompletionOutput]], float]:
    """Complete every prompt plain, one at a time, and drafted; return the pairs and the seconds of the drafted ones.

    After Ctrl-C those that are done are returned, if there are any.
    """
    from forerun.cli import tables

    plain = llm.with_drafter("none")
    pairs: list[tuple[CompletionOutput, CompletionOutput]] = []
    seconds = 0.0
    try:
        for first in tables.track(range(0, len(tasks), batch), "comparing"):
            prompts = _prompts(llm, tasks[first : first + batch])
            references = [plain.generate([prompt], params)[0].outputs[0] for prompt in prompts]
            start_s = time.perf_counter()
            drafted = [output.outputs[0] for output in llm.generate(prompts, params)]
            seconds += time.perf_counter() - start_s
            pairs += zip(references, drafted, strict=True)
    except KeyboardInterrupt:
        if not pairs:
            raise
    return pairs, seconds


def _print(tasks: list[TaskPrompt], pairs: list[tuple[CompletionOutput, CompletionOutput]]) -> None:
    """Print a line for each prompt: counts, and the first token that differs if one does; then the sum."""
    from forerun.cli import tables

    columns = ("prompt", "tokens", "drafted", "accepted", "tau", "identical")
    lines = [
        (task.id, *_counts([drafted]), _same(plain, drafted))
        for task, (plain, drafted) in zip(tasks, pairs, strict=True)
    ]
    shown = tables.table(columns, lines)
    same = sum(plain.token_ids == drafted.token_ids for plain, drafted in pairs)
    counts = _counts([drafted for _, drafted in pairs])
    shown.add_row("all", *map(str, counts), f"{same} of {len(pairs)}", style="bold")
    out = tables.report()
    out.print(shown)
    out.print(tables.TAU)


def _counts(completions: list[CompletionOutput]) -> tuple[object, ...]:
    from forerun.engine.stats import SpecStats

    stats = SpecStats.total(each.stats for each in completions)
    tokens = sum(len(each.token_ids) for each in completions)
    return (tokens, stats.drafted, stats.accepted, f"{stats.tau:.2f}")


def _same(plain: CompletionOutput, drafted: CompletionOutput) -> str:
    pairs = enumerate(zip_longest(plain.token_ids, drafted.token_ids))
    first = next((i for i, (a, b) in pairs if a != b), None)
    return "yes" if first is None else f"NO, from {first}"
