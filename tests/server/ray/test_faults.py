"""Nodes that come and go, a replica that the kernel kills for its memory: requests are answered all the same."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.conftest import apart, wait_until
from tests.server.ray.conftest import expected_of, kill, pids_of_replicas, replicas
from tests.server.ray.test_replicas import NUM_NEW, PROMPTS, ask

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]  # Ray's own, when it is imported
MEMORY = Path("/sys/fs/cgroup/memory/forerun-test")


@pytest.fixture(scope="module")
def expected(default_model) -> dict[str, str]:
    return expected_of(default_model, PROMPTS, NUM_NEW)


@pytest.fixture
def cluster(monkeypatch) -> Iterator[Cluster]:
    """A Ray of one node with one core, in processes of its own; nodes can be added to it."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield made
    made.shutdown()


@pytest.fixture
def tight() -> Iterator[Path]:
    """A group of processes that may take hardly any memory from when they join it."""
    try:
        MEMORY.mkdir()
        (MEMORY / "memory.limit_in_bytes").write_text("2M")
    except OSError as error:
        pytest.skip(f"needs root and memory groups of version 1: {error}")
    yield MEMORY
    with suppress(OSError):
        MEMORY.rmdir()


def asked_by_many(url: str, expected: dict[str, str], then=lambda: None) -> None:
    """Ask all prompts several times, do something meanwhile, and hold the answers to plain decoding's."""
    with ThreadPoolExecutor(8) as pool:
        found = [(prompt, pool.submit(ask, url, prompt)) for prompt in PROMPTS * 6]
        threading.Event().wait(0.5)
        then()
        for prompt, answer in found:
            assert answer.result(120).status_code == 200, answer.result().text
            assert answer.result().json()["choices"][0]["text"] == expected[prompt]


def num_replicas(url: str) -> int:
    return int(re.search(r"forerun:replicas (\d+)", httpx.get(f"{url}/metrics").text)[1])


def test_a_node_goes_and_another_one_comes(default_model, cluster, expected):
    node = cluster.add_node(num_cpus=1)
    flags = ("--replicas", "2", "--threads", "1", "--ray-address", cluster.address)
    with apart(default_model, *flags, ends=True) as (_, url, _):
        (raylet,) = (one.process for one in node.all_processes["raylet"])
        (lost,) = pids_of_replicas(raylet)

        def lose() -> None:
            cluster.remove_node(node, allow_graceful=False)
            with suppress(ProcessLookupError):
                kill(lost)

        asked_by_many(url, expected, lose)
        wait_until(lambda: num_replicas(url) == 1, 60)
        cluster.add_node(num_cpus=1)
        wait_until(lambda: num_replicas(url) == 2, 120)
        asked_by_many(url, expected)


def test_a_replica_without_memory_is_killed_and_its_requests_are_answered(
    default_model, tight, expected
):
    with replicas(default_model, 2) as (server, url, _):
        lost = pids_of_replicas(server)[0]
        asked_by_many(url, expected, lambda: (tight / "cgroup.procs").write_text(str(lost)))
        ask(url, "On and on, and then again. " * 100, 200)
        wait_until(lambda: "oom_kill 0" not in (tight / "memory.oom_control").read_text(), 60)
        wait_until(lambda: len({*pids_of_replicas(server)} - {lost}) == 2, 90)
        asked_by_many(url, expected)
