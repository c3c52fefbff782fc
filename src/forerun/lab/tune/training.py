"""The training of the network that `forerun tune` makes: how it begins, and its run. Needs torch."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from forerun.core.arrays import Ids
from forerun.core.errors import ForerunError
from forerun.hub.names import name_of
from forerun.lab.train import networks, session
from forerun.lab.train.answers import default_path
from forerun.lab.train.learners import Kind, Learner
from forerun.lab.train.trainer import CHECKPOINT, TrainSettings
from forerun.lab.tune.network import KIND, other
from forerun.llm import LLM

MAX_WIDTH = 640
"""Of a new network, as of those that ship."""
EPOCHS, STATES_GB = 2, 4.0


@dataclass(frozen=True, slots=True)
class Beginning:
    """A network before it learns a model's answers: a new one, or one that was trained before, in the folder `path`."""

    learner: Learner
    kind: Kind
    ids: Ids
    path: Path | None

    @classmethod
    def of(cls, llm: LLM, ids: Ids) -> Beginning:
        """Take the network that drafts by default, but for the model's own; else make one that guesses these tokens."""
        torch.manual_seed(0)
        if (path := other(llm)) is not None:
            learner, kind, ids = networks.trained(llm.target(), path)
        else:
            kind = Kind(KIND, inner_dim=min(llm.model.config.hidden_size, MAX_WIDTH))
            learner = networks.new(llm, kind, ids)
        learner.int8 = True
        return cls(learner, kind, ids, path)

    @property
    def num_weights(self) -> int:
        """Count the weights that are trained."""
        return sum(weight.numel() for weight in self.learner.net.parameters())


def draft_vocab(vocab_size: int) -> int:
    """Return how many tokens a new network guesses: 4096 of vocabularies like SmolLM2's, 8192 of larger ones."""
    return min(vocab_size, 4096 if vocab_size < 1 << 16 else 8192)


def states_kept(llm: LLM) -> AbstractContextManager[None]:
    """Keep the states of what the model answers meanwhile, so that a run need not read it."""
    return session.states_kept(llm, default_path(name_of(llm.path)), STATES_GB)


class NetworkRun:
    """A training run on the answers in the model's store; the same answers go on where it was."""

    def __init__(self, llm: LLM, left_out: Collection[str]) -> None:
        """Plan it; answers to prompts left out, by id, do not count. Raises ConfigError for too few answers."""
        self.llm = llm
        vocab = draft_vocab(llm.model.config.vocab_size)
        self.data = session.read_data(llm, None, (), vocab, left_out)
        path, tokens = other(llm), EPOCHS * sum(reply.num_learned for reply in self.data.train)
        self.settings = TrainSettings(tokens=tokens, bf16=session.has_bf16())
        if path is not None:
            self.settings = replace(self.settings, lr=self.settings.lr * networks.GOING_ON)
        planned = [asdict(self.settings), path and str(path)]
        name = f"{self.data.model}.network-{session.digest_of(planned)}"
        self.folder = self.data.path.with_name(name)

    @property
    def is_begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.folder / CHECKPOINT).exists()

    def train(self, command: str) -> Path:
        """Train it to the end, and return its folder; `command` repeats the run.

        Ctrl-C writes a checkpoint and notes the progress. Raises ForerunError if it guesses no better than it began.
        """
        begin = Beginning.of(self.llm, self.data.ids)
        data = replace(self.data, ids=begin.ids)
        origin: dict[str, object] = {"kind": asdict(begin.kind)}
        if begin.path is not None:
            origin["from"] = begin.path.name
        args = (begin.learner, data, self.settings, STATES_GB, self.folder, origin)
        trainer = session.new_trainer(self.llm, *args)
        session.run(self.llm, trainer, data, command)
        if not trainer.progress.best_tokens:
            raise ForerunError(
                f"after {trainer.progress.tokens} tokens it guesses no better than the one it began as: give --prompts "
                "or --tokens for more answers"
            )
        return self.folder
