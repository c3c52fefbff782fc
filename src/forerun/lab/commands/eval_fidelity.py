"""`forerun eval fidelity`: how near the native kernels are to fp32 on the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from forerun.cli import options as opt
from forerun.core.config import EngineConfig
from forerun.core.textfile import read_text
from forerun.lab.output import publish

if TYPE_CHECKING:
    from forerun.lab.eval.fidelity import Nearness, Read
    from forerun.llm import LLM

REFERENCE = "fp32 (torch)"
PEER = "llama.cpp"
WINDOW = 256


@opt.engine(without=(*opt.PASSES, "kv", "backend"), drafter="none")
def command(
    config: EngineConfig,
    text: list[Path] | None = typer.Option(
        None, help="A text file, UTF-8; repeatable. Default: the built-in ones."
    ),
    window: int = typer.Option(WINDOW, help="Tokens read at once; texts are cut into such pieces."),
    limit_tokens: int | None = typer.Option(None, help="Only the first tokens of each text."),
    peers_dir: Path = typer.Option(
        Path(".peers"), help="llama.cpp is compared if make peers put it there."
    ),
    as_json: opt.Json = False,
) -> None:
    """Compare this engine's next-token distributions, and llama.cpp's, with fp32 on the same file and texts."""
    from forerun.cli import console
    from forerun.lab.eval import fidelity

    opt.check_least("limit_tokens", limit_tokens, 2)
    texts = _texts(text)
    llm = opt.load(config)
    pieces = fidelity.pieces([llm.encode(each) for each in texts], window, limit_tokens)
    exact = opt.load(replace(config, backend="torch", quant="none", head_bits=None))
    reference = fidelity.reader(exact.model, window)
    with _systems(llm, window, peers_dir) as systems:
        steps = fidelity.compare(pieces, reference, [*systems.values()])
        sums = [fidelity.Nearness()] * (1 + len(systems))
        for found in console.track(steps, "comparing", len(pieces)):
            sums = [a + b for a, b in zip(sums, found, strict=True)]
    results = dict(zip([REFERENCE, *systems], sums, strict=True))
    sizes = {"texts": len(texts), "tokens": sums[0].tokens, "window": window}
    document = console.environment(config.model, "none") | sizes | {"rows": _rows(results)}
    publish(document, lambda: _print(results, len(texts)), as_json=as_json)


def _texts(files: list[Path] | None) -> list[str]:
    from forerun.hub.prompt_sets import read

    if files:
        return [read_text(file) for file in files]
    return [prompt.turns[0] for prompt in read()]


@contextmanager
def _systems(llm: LLM, window: int, peers_dir: Path) -> Iterator[dict[str, Read]]:
    """What is compared, by name: this engine, and llama.cpp where it is installed and reads the file."""
    import torch

    from forerun.cli import console
    from forerun.core.errors import ForerunError
    from forerun.lab.bench.peers import base
    from forerun.lab.bench.run import PeerError
    from forerun.lab.eval import fidelity

    named = {"forerun": fidelity.reader(llm.model, window)}
    if llm.path.suffix != ".gguf" or not base.is_installed(PEER, peers_dir):
        yield named
        return
    setup = base.Setup(llm.path, torch.get_num_threads(), window, peers_dir)
    peer = base.logits(PEER, setup)
    try:
        peer.start()
    except PeerError as error:
        peer.close()
        console.stderr().print(f"{PEER} is left out: {error}", style="yellow")
        yield named
        return
    try:
        yield named | {PEER: lambda tokens: torch.from_numpy(peer.logits(tokens))}
    except PeerError as error:
        raise ForerunError(f"{PEER}: {error}") from error
    finally:
        peer.close()


def _rows(results: dict[str, Nearness]) -> list[dict[str, object]]:
    return [
        {"system": name, "kl": sums.mean_kl, "agreement": sums.agreement, "ppl": sums.ppl}
        for name, sums in results.items()
    ]


def _print(results: dict[str, Nearness], num_texts: int) -> None:
    from forerun.cli import console

    lines = [
        (name, f"{sums.mean_kl:.4f}", f"{sums.agreement:.1%}", f"{sums.ppl:.3f}")
        for name, sums in results.items()
    ]
    lines[0] = (lines[0][0], "–", "–", lines[0][3])
    out = console.stdout()
    out.print(console.table(("system", "KL", "same likeliest token", "perplexity"), lines))
    console.stderr().print(
        f"{results[REFERENCE].tokens} tokens of {num_texts} texts; KL in nats a token, from fp32",
        style="dim",
    )
