"""`forerun eval fidelity`: how near the native kernels are to fp32 on the same weights."""

from __future__ import annotations

from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish
from forerun.system.files import read_text

WINDOW = 256


@opt.command()
@opt.engine(without=opt.PASSES, drafter="none")
@click.option(
    "--text",
    multiple=True,
    type=opt.PATH,
    help="A text file, UTF-8; repeatable. Default: the built-in ones.",
)
@click.option(
    "--window",
    default=WINDOW,
    type=int,
    help="Tokens read at once; texts are cut into such pieces.",
)
@click.option("--limit-tokens", type=int, help="Only the first tokens of each text.")
@shared.peers_dir
@opt.as_json
def command(
    config: EngineConfig,
    text: tuple[Path, ...],
    window: int,
    limit_tokens: int | None,
    peers_dir: Path,
    as_json: bool,
) -> None:
    """Compare this engine's next-token distributions, and llama.cpp's, with fp32 on the same file and texts.

    llama.cpp is left out where make peers has not installed it.
    """
    from forerun.cli import console, tables
    from forerun.hub.prompt_sets import read
    from forerun.lab.eval import fidelity, perplexity
    from forerun.lab.torch.backend import exact_model

    opt.check_least("limit_tokens", limit_tokens, 2)
    texts = [read_text(file) for file in text or ()] or [prompt.turns[0] for prompt in read()]
    llm = opt.load(config)
    pieces = fidelity.pieces([llm.encode(each) for each in texts], window, limit_tokens)
    reference = fidelity.reader(exact_model(llm), window)
    with fidelity.systems(llm, window, config.kv, peers_dir) as systems:
        steps = fidelity.compare(pieces, reference, [*systems.values()])
        sums = [perplexity.Score()] * (1 + len(systems))
        for scores in tables.track(steps, "comparing", len(pieces)):
            sums = [a + b for a, b in zip(sums, scores, strict=True)]
    results = dict(zip([fidelity.REFERENCE, *systems], sums, strict=True))
    rows = [
        {"system": name, "kl": each.mean_kl, "agreement": each.agreement, "ppl": each.ppl}
        for name, each in results.items()
    ]
    sizes = {"texts": len(texts), "tokens": sums[0].tokens, "window": window}
    environment = console.environment(config.model, "none", llm.model.num_threads)
    document = environment | sizes | {"kv": config.kv, "rows": rows}
    publish(document, lambda: fidelity.show(rows, **sizes), as_json=as_json)
