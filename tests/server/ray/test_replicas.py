"""`forerun serve --replicas 2`: the answers of one, and none lost that had not begun to stream."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server.conftest import post, wait_until
from tests.server.ray.conftest import (
    asked,
    expected_of,
    kill,
    listening,
    pids_of_replicas,
    replicas,
)

pytestmark = [pytest.mark.ray, pytest.mark.slow]
PROMPTS = [f"{number} names of rivers, one after the other:" for number in range(2, 10)]
NUM_NEW = 24


@pytest.fixture(scope="module")
def pair(default_model) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with replicas(default_model, 2) as (server, url, _):
        yield server, url


@pytest.fixture(scope="module")
def expected(default_model) -> dict[str, str]:
    return expected_of(default_model, PROMPTS, NUM_NEW)


def ask(url: str, prompt: str, num_new: int = NUM_NEW, **headers: str) -> httpx.Response:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": num_new}
    return httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=120)


def follow(url: str, prompt: str, num_new: int) -> tuple[str, list[dict]]:
    """What a stream said, and its errors; it has ended as streams do, or with an error as its last event."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": num_new, "stream": True}
    text, errors, last = "", [], ""
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as answer:
        assert answer.status_code == 200
        for line in filter(None, answer.iter_lines()):
            if line.startswith(":"):
                continue  # a ping
            last = line.removeprefix("data: ")
            if last == "[DONE]":
                continue
            event = json.loads(last)
            errors += [event["error"]] if "error" in event else []
            text += "".join(choice["text"] for choice in event.get("choices", ()))
    assert last == "[DONE]" or "error" in json.loads(last)
    return text, errors


def test_answers_are_those_of_plain_decoding(pair, expected):
    _, url = pair
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda prompt: ask(url, prompt), PROMPTS)]
    assert {p: one.json()["choices"][0]["text"] for p, one in zip(PROMPTS, found)} == expected
    assert len({one.headers["x-forerun-replica"] for one in found}) == 2


def test_streams_say_the_same(pair, expected):
    _, url = pair
    assert {p: follow(url, p, NUM_NEW) for p in PROMPTS[:3]} == {
        p: (expected[p], []) for p in PROMPTS[:3]
    }


def test_ollamas_lines_come_one_by_one(pair, expected):
    _, url = pair
    asked = {
        "prompt": PROMPTS[0],
        "raw": True,
        "options": {"temperature": 0, "num_predict": NUM_NEW},
    }
    with httpx.stream("POST", f"{url}/api/generate", json=asked, timeout=120) as answer:
        parts = [*answer.iter_raw()]
    lines = [json.loads(line) for line in b"".join(parts).splitlines()]
    assert len(parts) > 2
    assert "".join(line["response"] for line in lines) == expected[PROMPTS[0]]


def test_the_next_turn_finds_its_blocks_and_sessions_stay(pair):
    _, url = pair
    long = "The history of rivers, told at some length. " * 12
    first = ask(url, long, 4)
    for _ in range(3):
        again = ask(url, long + "Then", 4)
        assert again.headers["x-forerun-replica"] == first.headers["x-forerun-replica"]
        assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 50
    own = {ask(url, p, 1, **{"x-session-id": "s"}).headers["x-forerun-replica"] for p in PROMPTS}
    assert len(own) == 1


def test_what_is_wrong_is_said_as_by_one_server(pair):
    _, url = pair
    wrong = post(url, "/v1/completions", {"prompt": "x", "top_p": 2}, 400)
    assert "top_p must be" in wrong["error"]["message"]
    page = {"content-type": "text/plain", "sec-fetch-mode": "no-cors"}
    assert httpx.post(f"{url}/v1/completions", content="{}", headers=page).status_code == 415
    assert httpx.get(f"{url}/nowhere").status_code == 404
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}


def test_a_client_that_goes_away_ends_its_request(pair):
    _, url = pair
    body = {"prompt": "On and on", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    wait_until(lambda: not any(slot["is_processing"] for slot in httpx.get(f"{url}/slots").json()))


def test_a_killed_replica_loses_nothing_that_had_not_begun(pair, expected):
    server, url = pair
    with ThreadPoolExecutor(16) as pool:
        streams = [pool.submit(follow, url, prompt, 300) for prompt in PROMPTS[:4]]
        whole = [pool.submit(ask, url, prompt) for prompt in PROMPTS * 4]
        threading.Event().wait(0.5)
        kill(pids_of_replicas(server)[0])
        answers = [one.result(90) for one in whole]
        told = [one.result(90) for one in streams]
    for prompt, answer in zip(PROMPTS * 4, answers, strict=True):
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["text"] == expected[prompt]
    for prompt, (text, errors) in zip(PROMPTS, told, strict=False):
        assert text.startswith(expected[prompt][: len(text)])
        assert all(error["code"] == "replica_lost" for error in errors)
    wait_until(lambda: len(pids_of_replicas(server)) == 2, 60)


def test_requests_go_on_without_the_controller_and_it_comes_back(pair, expected):
    server, url = pair
    wait_until(lambda: len(pids_of_replicas(server)) == 2, 60)
    (controller,) = pids_of_replicas(server, "ServeController")
    kill(controller)
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda prompt: ask(url, prompt), PROMPTS * 3)]
    assert [one.json()["choices"][0]["text"] for one in found] == [expected[p] for p in PROMPTS * 3]
    wait_until(lambda: pids_of_replicas(server, "ServeController") not in ([], [controller]), 60)
    lost = pids_of_replicas(server)[0]
    kill(lost)
    wait_until(lambda: len({*pids_of_replicas(server)} - {lost}) == 2, 90)


def test_sigterm_lets_requests_end(default_model):
    with replicas(default_model, 1) as (server, url, _), ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, url, PROMPTS[0], 200)
        wait_until(lambda: any(s["is_processing"] for s in httpx.get(f"{url}/slots").json()))
        server.send_signal(signal.SIGTERM)
        assert running.result(60).status_code == 200
        assert server.wait(60) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--replicas", "2", "--ray-address", "127.0.0.1:1"), "no Ray at 127.0.0.1:1"),
        (("--replicas", "2", "--ray-address", "nowhere"), "must be auto or HOST:PORT"),
        (("--replicas", "500", "--threads", "2"), "need 1000 cores in total"),
        (("--ray-address", "127.0.0.1:6379"), "give --replicas N"),
        (("--replicas", "2", "--port", "{used}"), "is in use"),
        (("--replicas", "1", "--threads", "1", "--memory-budget", "20MiB"), "memory budget"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(default_model, flags, said):
    with socket.create_server(("127.0.0.1", 0)) as used:
        own = [flag.format(used=used.getsockname()[1]) for flag in flags]
        command = [
            sys.executable,
            "-m",
            "forerun",
            "serve",
            str(default_model),
            "--port",
            "0",
            *own,
        ]
        found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 2
    assert said in found.stderr
    lines = found.stderr.splitlines()
    assert len([line for line in lines if not line.startswith("starting Ray")]) == 1


def test_metrics_are_those_of_all_replicas(pair):
    _, url = pair
    for prompt in PROMPTS:
        ask(url, prompt, 1)
    page = httpx.get(f"{url}/metrics").text
    lines = [line for line in page.splitlines() if line.startswith("forerun:generation_tokens_tot")]
    assert len({re.search('engine="(.*?)"', line)[1] for line in lines}) == 2
    assert "forerun:replicas 2.0" in page
    assert page.count("# HELP forerun:generation_tokens_total") == 1
    assert "forerun:time_to_first_token_seconds_bucket" in page


def test_a_replica_lets_nobody_in_but_by_the_gateway(pair):
    server, _ = pair
    found = {address for pid in pids_of_replicas(server) for address in listening(pid)}
    answers = [asked(address) for address in found]
    assert answers.count(403) == 2
    assert 200 not in answers
