"""The network that `forerun tune` makes beside the table: what stands against it, and where drafters find it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from forerun.core.types import TaskPrompt
from forerun.drafters.base.networks.folder import CONFIG, TENSORS
from forerun.lab.output import writing
from forerun.lab.train import replies
from forerun.lab.train.kept import FOUND_KIND as KIND
from forerun.lab.train.kept import RECORD
from forerun.llm import LLM
from forerun.system import files
from forerun.system.device import torch_problem

NEEDS_TORCH = (
    "no network: it is trained with torch, which is not here (docs/installing.md, extra lab)"
)


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
    return None if torch_problem() is None else NEEDS_TORCH


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
        for name in (RECORD, TENSORS, CONFIG):
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
