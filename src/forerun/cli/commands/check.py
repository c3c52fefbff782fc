"""`forerun check`: what a model is and what it can do here, or whether one can draft for another.

Headers and tokenizers are read, no weights.
"""

from __future__ import annotations

from typing import Any

import click

from forerun.cli import options as opt

NUM_DRAFTS = (1, 3, 5, 7)


@opt.command()
@opt.argument("target", help="The model that answers.")
@opt.argument("draft", required=False, help="The smaller model that would draft for it.")
@click.option("--quant", default="none", help="int8 or int4: round the target's weights first.")
@click.option(
    "--draft-quant",
    help="The same of the draft, which may be TARGET itself. [default: int4, as it drafts]",
)
@opt.as_json
def command(
    target: str,
    draft: str | None,
    quant: str,
    draft_quant: str | None,
    as_json: bool,
) -> None:
    """Describe a model and how it would run: family, formats, chat, drafting, memory.

    Only headers are read. Exits 1 if the model cannot be loaded, with the reason.

    With DRAFT, say whether that model can draft for TARGET, and how often it must be right to be faster. Exits 1 if
    it cannot.
    """
    from forerun.core.errors import ConfigError

    if draft is not None:
        _check_pair(target, draft, quant, draft_quant or "int4", as_json)
    elif draft_quant is not None:
        raise ConfigError(f"--draft-quant {draft_quant} is for a draft: give one after the target")
    else:
        _check_one(target, quant, as_json)


def _check_one(target: str, quant: str, as_json: bool) -> None:
    """Print the facts of one model, or why it cannot be loaded."""
    from forerun.cli import console, tables
    from forerun.cli.commands import _model_report
    from forerun.core.errors import LoadError
    from forerun.hub.names import resolve

    resolve(target)  # a model that is not there is a mistake, not an answer
    try:
        document = _model_report.document(target, quant)
    except LoadError as error:
        document = {"model": target, "loads": False, "error": str(error)}
    if as_json:
        console.print_json(document)
    elif document["loads"]:
        _model_report.report(document)
    else:
        tables.report().print(f"cannot be loaded: {document['error']}", soft_wrap=True)
    if not document["loads"]:
        raise click.exceptions.Exit(1)


def _check_pair(target: str, draft: str, quant: str, draft_quant: str, as_json: bool) -> None:
    """Print whether a model can draft for another."""
    from forerun.cli import console
    from forerun.drafters.base import trimmed
    from forerun.drafters.base.vocabulary import vocabulary_difference
    from forerun.hub.names import resolve
    from forerun.model.loader import read_config, step_nbytes, weights_nbytes
    from forerun.weights.checkpoint import open_checkpoint

    model, num_tokens = trimmed.described(draft)
    pair = [open_checkpoint(resolve(name)) for name in (target, model)]
    configs = [read_config(checkpoint)[0] for checkpoint in pair]
    schemes = (quant, draft_quant)
    sizes: list[float] = [*map(weights_nbytes, pair, schemes)]  # type: ignore[arg-type]  # checked there
    if num_tokens is not None:
        sizes[1] = step_nbytes(configs[1], sizes[1], num_tokens)
    vocabularies = [checkpoint.tokenizer() for checkpoint in pair]
    difference = vocabulary_difference(*vocabularies)
    cost = sizes[1] / sizes[0]
    needed = {num_draft: _break_even(num_draft, cost) for num_draft in NUM_DRAFTS}
    document = {
        "model": target,
        "draft": draft,
        "draft_vocab": num_tokens,
        "compatible": difference is None,
        "vocabulary": [vocabulary.vocab_size for vocabulary in vocabularies],
        "difference": difference,
        "context": [config.max_position for config in configs],
        "weights_mb": [round(size / 1e6, 1) for size in sizes],
        "cost": round(cost, 4),
        "break_even_acceptance": {k: v and round(v, 4) for k, v in needed.items()},
    }
    if as_json:
        console.print_json(document)
    else:
        _report(document)
    if difference is not None:
        raise click.exceptions.Exit(1)


def _report(document: dict[str, Any]) -> None:
    from rich.text import Text

    from forerun.cli import tables

    context, weights, fits = document["context"], document["weights_mb"], document["compatible"]
    note = "" if context[1] >= context[0] else f"; beyond {context[1]} tokens nothing is drafted"
    rates = ", ".join(
        f"{rate:.0%} for {gamma}" if rate is not None else f"never for {gamma}"
        for gamma, rate in document["break_even_acceptance"].items()
    )
    same = f"the same {document['vocabulary'][0]} tokens"
    if fits and document["draft_vocab"] is not None:
        same += f", {document['draft_vocab']} of which the draft may guess"
    lines = [
        ("tokenizer", same if fits else document["difference"]),
        ("context", f"target {context[0]}, draft {context[1]} tokens{note}"),
        ("weights", f"target {weights[0]} MB, draft {weights[1]} MB"),
        ("cost", f"one draft step reads {document['cost']:.1%} of a target pass"),
        ("break-even", f"acceptance {rates} drafted tokens a step"),
        ("verdict", Text("fits", "green") if fits else Text("does not fit", "red")),
    ]
    tables.report().print(tables.table(("", ""), lines, num_left=2))


def _break_even(num_draft: int, cost: float) -> float | None:
    """Return how often guesses must be right for `num_draft` tokens a step to be faster than plain decoding.

    `cost` is one draft step over one target pass. None if not even perfect guesses are faster. Source: Leviathan et
    al. (arXiv 2211.17192), theorem 3.8.
    """

    def speedup(acceptance: float) -> float:
        return sum(acceptance**i for i in range(num_draft + 1)) / (num_draft * cost + 1)

    if speedup(1.0) <= 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if speedup(middle) > 1 else (middle, high)
    return high
