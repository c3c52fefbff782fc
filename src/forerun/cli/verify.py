"""`forerun verify`: the proof of the first promise on your own prompts: drafting changes no token."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from forerun.cli import _options as opt

if TYPE_CHECKING:
    from forerun.eval.prompts import TaskPrompt
    from forerun.llm import LLM, CompletionOutput


def command(
    model: opt.Model = opt.DEFAULT_MODEL,
    drafter: opt.Drafter = "auto",
    draft_model: opt.DraftModel = None,
    num_draft: opt.NumDraft = None,
    speculative_config: opt.SpeculativeConfig = None,
    prompts: Annotated[
        str, typer.Option("--prompts", help="A .jsonl with turns, or a text file; default: ours.")
    ] = "builtin",
    limit: Annotated[int | None, typer.Option("--limit", help="Only the first prompts.")] = None,
    max_tokens: opt.MaxTokens = 96,
    batch: Annotated[int, typer.Option("--batch", help="Prompts decoded together, drafted.")] = 1,
    device: opt.Device = "auto",
    backend: opt.Backend = "auto",
    quant: opt.Quant = "none",
    head_bits: opt.HeadBits = None,
    weight_cache: opt.WeightCache = True,
    threads: opt.Threads = None,
    max_model_len: opt.ContextSize = None,
    as_json: opt.Json = False,
) -> None:
    """Decode every prompt plainly and with drafting, greedily, and compare the token ids. Exits 1 on any difference."""
    from forerun.cli import _console as console
    from forerun.eval.prompts import read

    tasks = read(prompts, limit)
    llm = opt.load(
        model,
        drafter,
        draft_model=draft_model,
        num_draft=num_draft,
        speculative_config=speculative_config,
        device=device,
        backend=backend,
        quant=quant,
        head_bits=head_bits,
        weight_cache=weight_cache,
        threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=batch,
        controller=False,  # the more is drafted, the more is proved
    )
    pairs, seconds = _decode_both_ways(llm, tasks, max_tokens, batch)
    console.print_verdict(tasks, pairs)
    different = [
        task.id
        for task, (plain, drafted) in zip(tasks, pairs, strict=True)
        if plain.token_ids != drafted.token_ids
    ]
    if as_json:
        measured = console.Measured(
            tokens=sum(len(drafted.token_ids) for _, drafted in pairs),
            seconds=seconds,
            stats=console.total(drafted for _, drafted in pairs),
            draft_s=llm.engine.timers.draft_s,
            verify_s=llm.engine.timers.verify_s,
            ttft_s=None,
        )
        figures = console.environment(model, llm.drafter_spec.name) | measured.document()
        outcome = {"prompts": len(tasks), "identical": not different, "different": different}
        console.print_json(figures | outcome)
    if different:
        raise typer.Exit(1)


def _decode_both_ways(
    llm: LLM, tasks: list[TaskPrompt], max_tokens: int | None, batch: int
) -> tuple[list[tuple[CompletionOutput, CompletionOutput]], float]:
    """(plain, drafted) completions of every prompt, the plain ones one at a time; seconds of the drafted ones."""
    from forerun.cli import _console as console

    params = opt.sampling(temperature=0.0, max_tokens=max_tokens)
    plain = llm.with_drafter("none")
    pairs: list[tuple[CompletionOutput, CompletionOutput]] = []
    seconds = 0.0
    for first in console.track(range(0, len(tasks), batch), "comparing"):
        prompts = [opt.conversation(task.turns[0]) for task in tasks[first : first + batch]]
        references = [plain.generate([prompt], params)[0].outputs[0] for prompt in prompts]
        start_s = time.perf_counter()
        drafted = [output.outputs[0] for output in llm.generate(prompts, params)]
        seconds += time.perf_counter() - start_s
        pairs += zip(references, drafted, strict=True)
    return pairs, seconds
