"""Two processes that share each batch take the same steps as one; a killed run goes on as if it had not been."""

from __future__ import annotations

import itertools
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing
from torch.multiprocessing.spawn import ProcessExitedException
from torch.testing import assert_close

from forerun.lab.train.trainer import CHECKPOINT, Trainer
from tests.lab.train import test_trainer as alone

SETTINGS = replace(alone.SETTINGS, tokens=600, eval_every=200)
KILLED_AT = 3
"""A step after the first checkpoint, which a measurement after 200 tokens writes."""


def work(rank: int, port: int, folder: str, name: str, *, killed: bool = False) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    run = alone.new(Path(folder) / name, settings=SETTINGS)
    if killed:
        kill_at(run, KILLED_AT)
    torch.save(alone.run(run).learner.net.state_dict(), Path(folder) / f"{name}.{rank}.pt")
    distributed.destroy_process_group()


def kill_at(run: Trainer, step: int) -> None:
    """Take so many steps, and be killed."""
    alone.run(run, step)
    os.kill(os.getpid(), signal.SIGKILL)


def one(_: int, folder: str, kills_while_writing: bool) -> None:
    """A process that is killed between two steps, or while it writes its second checkpoint."""
    torch.set_num_threads(1)
    run = alone.new(Path(folder), settings=SETTINGS)
    if not kills_while_writing:
        kill_at(run, KILLED_AT)
    written = itertools.count()
    os.replace = lambda *paths: (  # type: ignore[assignment]
        Path(paths[0]).rename(paths[1])
        if Path(paths[1]).name != CHECKPOINT or next(written) == 0
        else os.kill(os.getpid(), signal.SIGKILL)
    )
    alone.run(run)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def pair(folder: Path, name: str, *, killed: bool = False) -> None:
    given = (free_port(), str(folder), name)
    multiprocessing.spawn(_killed if killed else work, given, nprocs=2)


def _killed(rank: int, port: int, folder: str, name: str) -> None:
    work(rank, port, folder, name, killed=True)


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path) -> None:
    pair(tmp_path, "two")
    wanted = alone.run(alone.new(tmp_path / "one", settings=SETTINGS)).learner.net.state_dict()
    start = alone.new(tmp_path / "none").learner.net.state_dict()
    first, second = (torch.load(tmp_path / f"two.{rank}.pt") for rank in (0, 1))
    for name, weight in wanted.items():
        assert torch.equal(first[name], second[name])
        assert_close(first[name], weight, atol=2e-3, rtol=2e-2)
        assert not torch.allclose(first[name], start[name], atol=2e-3)
    assert (tmp_path / "two" / CHECKPOINT).exists()


@pytest.mark.slow
def test_two_killed_processes_go_on_bit_for_bit(tmp_path) -> None:
    pair(tmp_path, "whole")
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        pair(tmp_path, "parts", killed=True)
    assert not (tmp_path / "parts.0.pt").exists()
    pair(tmp_path, "parts")
    for rank in (0, 1):
        whole = torch.load(tmp_path / f"whole.{rank}.pt")
        parts = torch.load(tmp_path / f"parts.{rank}.pt")
        assert all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.slow
@pytest.mark.parametrize("while_writing", [False, True])
def test_a_run_that_was_killed_goes_on_bit_for_bit(tmp_path, while_writing) -> None:
    whole = alone.run(alone.new(tmp_path / "whole", settings=SETTINGS))
    with pytest.raises(ProcessExitedException, match="SIGKILL"):
        multiprocessing.spawn(one, (str(tmp_path / "parts"), while_writing), nprocs=1)
    progress = torch.load(tmp_path / "parts" / CHECKPOINT, weights_only=True)["progress"]
    assert 0 < progress["step"] < whole.progress.step
    parts = alone.new(tmp_path / "parts", settings=SETTINGS)
    alone.run(parts)
    again = parts.learner.net.state_dict()
    for name, weight in whole.learner.net.state_dict().items():
        assert torch.equal(weight, again[name])
    lines = [
        [{k: v for k, v in line.items() if k != "cpu_s"} for line in run.progress.history]
        for run in (whole, parts)
    ]
    assert lines[0] == lines[1]
