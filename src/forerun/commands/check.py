"""`forerun check TARGET DRAFT`: whether one model can draft for another. Reads headers and tokenizers, no weights."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forerun.cli import options as opt

NUM_DRAFTS = (1, 3, 5, 7)


def command(
    target: Annotated[str, typer.Argument(help="The model that answers.")],
    draft: Annotated[str, typer.Argument(help="The smaller model that would draft for it.")],
    quant: Annotated[
        str, typer.Option("--quant", help="int8 or int4: round the target's weights first.")
    ] = "none",
    draft_quant: Annotated[
        str,
        typer.Option("--draft-quant", help="The same of the draft, which may be TARGET itself."),
    ] = "none",
    as_json: opt.Json = False,
) -> None:
    """Say whether DRAFT can draft for TARGET, and how often it must be right to be faster. Exits 1 if it cannot."""
    from forerun.cli import console
    from forerun.drafting.vocabulary import vocabulary_difference
    from forerun.engine.profile import choices
    from forerun.engine.speedup_model import break_even
    from forerun.hub.names import resolve
    from forerun.model.loader import read_config, weights_nbytes
    from forerun.weights.checkpoint import open_checkpoint

    pair = [open_checkpoint(resolve(name)) for name in (target, draft)]
    configs = [read_config(checkpoint)[0] for checkpoint in pair]
    sizes = [
        weights_nbytes(checkpoint, scheme)  # type: ignore[arg-type]  # checked there
        for checkpoint, scheme in zip(pair, (quant, draft_quant), strict=True)
    ]
    vocabularies = [checkpoint.tokenizer() for checkpoint in pair]
    difference = vocabulary_difference(*vocabularies)
    cost = sizes[1] / sizes[0]
    needed = {num_draft: break_even(num_draft, cost) for num_draft in NUM_DRAFTS}
    document = {
        "model": target,
        "draft": draft,
        "compatible": difference is None,
        "vocabulary": [vocabulary.vocab_size for vocabulary in vocabularies],
        "difference": difference,
        "context": [config.max_position for config in configs],
        "weights_mb": [round(size / 1e6, 1) for size in sizes],
        "cost": round(cost, 4),
        "break_even_acceptance": {k: v and round(v, 4) for k, v in needed.items()},
        "profiles": choices(resolve(target)),
    }
    if as_json:
        console.print_json(document)
    else:
        _report(document)
    if difference is not None:
        raise typer.Exit(1)


def _report(document: dict[str, Any]) -> None:
    from rich.text import Text

    from forerun.cli import console

    context, weights, fits = document["context"], document["weights_mb"], document["compatible"]
    note = "" if context[1] >= context[0] else f"; beyond {context[1]} tokens nothing is drafted"
    rates = ", ".join(
        f"{rate:.0%} for {gamma}" if rate is not None else f"never for {gamma}"
        for gamma, rate in document["break_even_acceptance"].items()
    )
    same, profiles = f"the same {document['vocabulary'][0]} tokens", ", ".join(document["profiles"])
    lines = [
        ("tokenizer", same if fits else document["difference"]),
        ("context", f"target {context[0]}, draft {context[1]} tokens{note}"),
        ("weights", f"target {weights[0]} MB, draft {weights[1]} MB"),
        ("cost", f"one draft step reads {document['cost']:.1%} of a target pass"),
        ("break-even", f"acceptance {rates} drafted tokens a step"),
        ("profile", profiles or "none yet: forerun autotune measures whether it is faster"),
        ("verdict", Text("fits", "green") if fits else Text("does not fit", "red")),
    ]
    console.report().print(console.table(("", ""), lines, num_left=2))
