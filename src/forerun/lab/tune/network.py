"""The network that `forerun tune` makes beside the table: how it begins, its training, and where drafters find it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from forerun.core.arrays import Ids
from forerun.core.errors import ForerunError
from forerun.core.types import TaskPrompt
from forerun.drafters.base.networks.folder import CONFIG, TENSORS
from forerun.hub.names import name_of
from forerun.lab.output import writing
from forerun.lab.train import networks, replies, session
from forerun.lab.train.answers import default_path
from forerun.lab.train.learners import Kind, Learner
from forerun.lab.train.trainer import CHECKPOINT, TrainSettings
from forerun.llm import LLM
from forerun.system import files

KIND = networks.FOUND_KIND
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


def own_folder(llm: LLM) -> Path:
    """Return where drafters look for a model's own network."""
    from forerun.drafters.mlp_speculator import files as of_drafter

    return of_drafter.own_folder(llm.path)


def other(llm: LLM) -> Path | None:
    """Find the network that drafts by default without the model's own."""
    from forerun.drafters.mlp_speculator.files import fitting

    own = own_folder(llm)
    return next((path for path in fitting(llm.target()) if path != own), None)


def obstacle(auto: str, prompts: Sequence[TaskPrompt]) -> str | None:
    """Say what stands against any network; None: nothing. `auto` is the default drafter."""
    if auto.startswith("mtp"):
        return "no network: the model's file has a head that drafts (mtp); forerun train drafter makes one all the same"
    held_out = sum(replies.is_held_out(prompt.id) for prompt in prompts)
    if len(prompts) < replies.NEEDED_PROMPTS or not 0 < held_out < len(prompts):
        return (
            f"no network: {len(prompts)} prompts are too few to learn from and to measure on; give --prompts with "
            f"{replies.NEEDED_PROMPTS} or more"
        )
    return None


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


def drafters(llm: LLM, trained: Path, alone: str) -> list[str]:
    """Name what drafts with the model's own network, if it has one, and with the one in a folder, beside a table.

    `alone` drafts with that table alone.
    """
    own = own_folder(llm)
    folders = [*([own] if own.exists() else []), trained]
    return [f"{KIND}:model={each}++{alone.rpartition('++')[2]}" for each in folders]


def install(llm: LLM, folder: Path) -> Path:
    """Copy a network to where drafters find it, in the place of what is there, and return that folder.

    Raises ForerunError.
    """
    own = own_folder(llm)
    new = folder.with_name(f"{folder.name}.new")  # drafters do not look there
    with writing(own):
        files.make_folder(new)
        for name in (session.RECORD, TENSORS, CONFIG):
            files.replace(new / name, (folder / name).read_bytes())
        remove(llm)
        files.make_folder(own.parent)
        new.rename(own)
    return own


def remove(llm: LLM) -> None:
    """Delete the model's own network, if there is one. Raises ForerunError."""
    own = own_folder(llm)
    with writing(own):
        if own.exists():
            shutil.rmtree(own)
