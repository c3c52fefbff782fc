"""Two processes that share each batch take the same steps as one."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing
from torch.testing import assert_close

from tests.train import test_trainer as alone

SETTINGS = replace(alone.SETTINGS, tokens=600, eval_every=300)


def work(rank: int, port: int, folder: str) -> None:
    """One of two processes."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    done = alone.run(alone.new(Path(folder) / "two", settings=SETTINGS))
    torch.save(done.learner.net.state_dict(), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(work, (port, str(tmp_path)), nprocs=2)
    wanted = alone.run(alone.new(tmp_path / "one", settings=SETTINGS)).learner.net.state_dict()
    start = alone.new(tmp_path / "none").learner.net.state_dict()
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, weight in wanted.items():
        assert torch.equal(first[name], second[name])
        assert_close(first[name], weight, atol=2e-3, rtol=2e-2)
        assert not torch.allclose(first[name], start[name], atol=2e-3)
    assert (tmp_path / "two" / "checkpoint.pt").exists()
