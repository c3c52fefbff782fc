"""`forerun verify`: the proof of the first promise on your own prompts: drafting changes no token."""

from __future__ import annotations

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
    head_bits: opt.HeadBits = None,
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
        head_bits=head_bits,
        threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=batch,
    )
    pairs = _decode_both_ways(llm, tasks, max_tokens, batch)
    console.print_verdict(tasks, pairs)
    drafted = console.total([pair[1] for pair in pairs])
    identical = all(plain.token_ids == ours.token_ids for plain, ours in pairs)
    if as_json:
        console.print_json(
            {
                **console.environment(model, llm.drafter_spec.name),
                "prompts": len(tasks),
                "tokens": sum(len(ours.token_ids) for _, ours in pairs),
                "drafted": drafted.drafted,
                "accepted": drafted.accepted,
                "rejected": drafted.rejected,
                "tau": round(drafted.tau, 3),
                "acceptance_rate": round(drafted.acceptance_rate, 4),
                "acceptance_by_depth": [round(r, 4) for r in drafted.acceptance_by_depth],
                "identical": identical,
                "different": [
                    task.id
                    for task, (plain, ours) in zip(tasks, pairs, strict=True)
                    if plain.token_ids != ours.token_ids
                ],
            }
        )
    if not identical:
        raise typer.Exit(1)


def _decode_both_ways(
    llm: LLM, tasks: list[TaskPrompt], max_tokens: int | None, batch: int
) -> list[tuple[CompletionOutput, CompletionOutput]]:
    """(plain, drafted) completions of every prompt; the plain ones one at a time."""
    from forerun.cli import _console as console

    params = opt.sampling(temperature=0.0, max_tokens=max_tokens)
    plain = llm.with_drafter("none")
    pairs: list[tuple[CompletionOutput, CompletionOutput]] = []
    for first in console.track(range(0, len(tasks), batch), "comparing"):
        prompts = [opt.conversation(task.turns[0]) for task in tasks[first : first + batch]]
        references = [plain.generate([prompt], params)[0].outputs[0] for prompt in prompts]
        drafted = [output.outputs[0] for output in llm.generate(prompts, params)]
        pairs += zip(references, drafted, strict=True)
    return pairs
