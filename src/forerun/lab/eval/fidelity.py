"""Fidelity: how near a system's next-token distributions are to those of a reference that reads the same weights.

Both read the same token ids. At every token that has a next one: the Kullback-Leibler divergence from the reference, in
nats, whether both find the same token likeliest, and the negative log-probability of the token that does come.
A system is a function from token ids (n,) to logits (n, V), fp32; drafting has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forerun.cli import console
from forerun.core.batch import Batch, Segment
from forerun.core.config import Precision
from forerun.core.errors import ConfigError, ForerunError
from forerun.lab.bench.peers import base
from forerun.lab.bench.run import PeerError
from forerun.lab.eval.perplexity import Score, new_cache, windows
from forerun.lab.output import Column, show_table
from forerun.llm import LLM
from forerun.model.model import Model

REFERENCE = "fp32 (torch)"
PEER = "llama.cpp"

Read = Callable[[Sequence[int]], Tensor]
"""Token ids (n,) to the logits after each of them (n, V)."""

ROWS = 64
"""Rows compared at once, in fp64."""


def pieces(
    texts: Sequence[Sequence[int]], window: int, limit: int | None = None
) -> list[list[int]]:
    """Return the first `limit` tokens of each text, cut into pieces of at most `window` side by side.

    A piece of one token predicts nothing and is left out. Raises ConfigError if nothing is left.
    """
    cut = [
        list(text[part.start : part.stop])
        for text in (text[:limit] for text in texts)
        if len(text) > 1
        for part in windows(len(text), window, window)
    ]
    if not cut:
        raise ConfigError("the texts hold no two tokens in a row: give a longer one")
    return cut


def reader(model: Model, window: int, kv: Precision = "auto") -> Read:
    """Return a function for a model's logits; it reads a piece as the engine does a prompt, keys and values as `kv`.

    Raises ConfigError if the window is longer than the model's context.
    """
    cache = new_cache(model, window, kv)

    def read(tokens: Sequence[int]) -> Tensor:
        segment = Segment(0, 0, tuple(tokens), certain=len(tokens))
        return torch.from_numpy(model.head(model.forward(Batch((segment,)), cache).last))

    return read


def compare(
    texts: Sequence[Sequence[int]], reference: Read, systems: Sequence[Read]
) -> Iterator[list[Score]]:
    """Yield for each text the reference's own sums, then those of every system."""
    for tokens in texts:
        exact = reference(tokens)
        yield [
            nearness(tokens, exact, logits)
            for logits in (exact, *(read(tokens) for read in systems))
        ]


def nearness(tokens: Sequence[int], exact: Tensor, logits: Tensor) -> Score:
    """Compare logits (n, V) after each of the tokens (n,) with the exact ones; the last row has no next token."""
    total = Score()
    for start in range(0, len(tokens) - 1, ROWS):
        rows = slice(start, min(start + ROWS, len(tokens) - 1))
        goal = torch.tensor(tokens[rows.start + 1 : rows.stop + 1])
        right, ours = (x[rows].double().log_softmax(-1) for x in (exact, logits))
        share = right.exp()
        total += Score(
            tokens=len(goal),
            nll=float(-ours.gather(-1, goal[:, None]).sum()),
            kl=float((share * (right - ours)).where(share > 0, 0).sum()),
            same=int((exact[rows].argmax(-1) == logits[rows].argmax(-1)).sum()),
        )
    return total


@contextmanager
def systems(llm: LLM, window: int, kv: Precision, peers_dir: Path) -> Iterator[dict[str, Read]]:
    """Yield what is compared, by name: this engine, and llama.cpp where it is installed and reads the file."""
    named = {"forerun": reader(llm.model, window, kv)}
    if llm.path.suffix != ".gguf" or not base.is_installed(PEER, peers_dir):
        yield named
        return
    peer = base.single(
        PEER, base.LOGITS, base.Setup(llm.path, llm.model.num_threads, window, peers_dir)
    )
    try:
        peer.start()
        named[PEER] = lambda tokens: torch.from_numpy(peer.logits(tokens))
    except PeerError as error:
        console.note(f"{PEER} is left out: {error}", fg="yellow")
    try:
        yield named
    except PeerError as error:
        raise ForerunError(f"{PEER}: {error}") from error
    finally:
        peer.close()


def show(rows: Sequence[Mapping[str, Any]], *, texts: int, tokens: int, window: int) -> None:
    """Print a line a system, the reference first."""
    reference, *others = rows
    shown = [{**reference, "kl": None, "agreement": None}, *others]
    columns: dict[str, Column] = {
        "system": "system",
        "KL": ("kl", 4),
        "same likeliest token": ("agreement", ".1%"),
        "perplexity": ("ppl", 3),
    }
    show_table(shown, columns)
    measured = (
        f"{tokens} tokens of {texts} texts in windows of {window}; KL in nats a token, from fp32"
    )
    console.note(measured, dim=True)
