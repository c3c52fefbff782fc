"""`forerun eval ppl`: perplexity of a text."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import click

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.errors import ConfigError
from forerun.lab import provenance
from forerun.lab.commands import _options as shared
from forerun.lab.output import publish
from forerun.system.files import read_text

DEFAULT_WINDOW = 1024


@opt.command()
@opt.engine(without=opt.PASSES, drafter="none")
@opt.argument("file", type=opt.PATH, help="The text, UTF-8.")
@click.option(
    "--window", type=int, help="Tokens read at once; default: 1024, or the model's context."
)
@click.option("--stride", type=int, help="Tokens between windows; default: half a window.")
@click.option("--limit-tokens", type=int, help="Only the first tokens of the text.")
@click.option(
    "--fp32", is_flag=True, help="Compute with torch in fp32, the reference of the kernels."
)
@shared.out_resumed
@opt.as_json
def command(
    config: EngineConfig,
    file: Path,
    window: int | None,
    stride: int | None,
    limit_tokens: int | None,
    fp32: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Perplexity of a text, each token predicted once from a window of what stands before it."""
    from forerun.cli import console, tables
    from forerun.lab.eval import perplexity
    from forerun.lab.store import Store

    opt.check_least("limit_tokens", limit_tokens, 2)
    text = read_text(file)
    if fp32 and config.head_bits is not None:
        raise ConfigError("--fp32 rounds no head: leave out --head-bits")
    llm = opt.load(config)
    model = llm.model
    if fp32:
        from forerun.lab.torch.backend import exact_model

        model = exact_model(llm, config.quant)
    tokens = llm.encode(text)[:limit_tokens]
    window = min(DEFAULT_WINDOW, llm.model.config.max_position) if window is None else window
    stride = max(1, window // 2) if stride is None else stride
    plan = perplexity.windows(len(tokens), window, stride)
    sizes = {"window": window, "stride": stride, "limit_tokens": limit_tokens}
    origin = provenance.origin(config, llm, text=hashlib.sha256(text.encode()).hexdigest(), **sizes)
    origin["backend"] = type(model).__name__
    steps = perplexity.measure(model, tokens, plan, Store(origin, out), config.kv)
    score, done = perplexity.Score(), 0
    try:
        for done, part in enumerate(tables.track(steps, "reading", len(plan)), 1):  # noqa: B007
            score += part
    except KeyboardInterrupt:
        hint = "nothing is lost" if out else "give --out FILE to go on later"
        console.note(
            f"perplexity {score.ppl:.4f} after {done} of {len(plan)} windows; {hint}", dim=True
        )
        raise
    predicted = [token for part in plan for token in tokens[part.first : part.stop]]
    nbytes = sum(len(llm.tokenizer.token_bytes(token) or b"") for token in predicted)
    bits = score.nll / math.log(2) / nbytes if nbytes else math.nan
    named = {name: origin[name] for name in ("quant", "backend")}
    figures = {"ppl": score.ppl, "bits_per_byte": bits, "tokens": score.tokens}
    figures |= {"seconds": round(score.seconds, 3), "windows": len(plan)}
    summary = (
        f"perplexity {score.ppl:.4f} over {score.tokens} tokens ({bits:.4f} bits a byte), "
        f"{score.tokens / score.seconds:.0f} tokens/s"
    )
    publish(
        console.environment(config.model, "none", llm.model.num_threads) | named | figures | sizes,
        lambda: tables.report().print(summary),
        as_json=as_json,
    )
