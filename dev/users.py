"""Tokens a second of one to eight users of a server, beside llama-server: `python -m dev.users --help`.

All servers are up and get the same chats in turns, each chat once. Prompts' reading counts. With `--arrivals` they get
requests of mixed lengths at random times instead (`dev.arrivals`); with `--url` those that run already are asked.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import httpx

from dev import arrivals
from dev.servers import free_port, running
from forerun.server.client import Remote

USERS = (1, 2, 4, 8)
LONGEST = 1500
"""Characters of a prompt, so that all fit into 2,048 tokens."""
CONTEXT = 8192
"""Tokens that the longest of `arrivals.KINDS` needs."""


def commands(
    model: str, llama_server: str, threads: int, context: int = 2048
) -> dict[str, list[str]]:
    """Return what is compared, each a command that lacks its port; `context` tokens for each of eight."""
    own = ["serve", model, "--max-num-seqs", "8", "-c", str(context)]
    ours = [sys.executable, "-m", "forerun", *own]
    theirs = [llama_server, "-m", model, "-np", "8", "-c", str(8 * context)]
    theirs += ["-fa", "on", "--no-webui"]
    both = {
        "forerun": ours,
        "forerun -d none": [*ours, "-d", "none"],
        "llama-server, ngram-mod": [*theirs, "--spec-default"],
        "llama-server": theirs,
    }
    return {name: [*command, "-t", str(threads)] for name, command in both.items()}


@contextmanager
def served(name: str, command: list[str]) -> Iterator[Callable[[str], int]]:
    """Run a server; gives what sends it a chat and returns how many tokens came. Raises ConfigError."""
    port = free_port()
    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600)

    def chat(text: str) -> int:
        body = {
            "messages": [{"role": "user", "content": text}],
            **{"max_tokens": 64, "temperature": 0, "seed": 1, "cache_prompt": False},
        }
        answer = client.post("/v1/chat/completions", json=body).raise_for_status()
        return int(answer.json()["usage"]["completion_tokens"])

    with client, running(name, [*command, "--port", str(port)], port):
        yield chat


def measure(args: argparse.Namespace) -> None:
    """Write a line for each load: round, users and the tokens a second of each server."""
    prompts = [
        json.loads(line)["turns"][0]
        for path in args.prompts
        for line in path.open(encoding="utf-8")
    ]
    prompts = [prompt for prompt in prompts if len(prompt) < LONGEST]
    random.Random(args.seed).shuffle(prompts)
    at = iter(prompts)
    with ExitStack() as stack, args.out.open("a", encoding="utf-8") as out:
        each = commands(args.model, args.llama_server, args.threads)
        servers = {
            name: stack.enter_context(served(name, command)) for name, command in each.items()
        }
        time.sleep(args.settle)
        for number in range(args.rounds):
            for users in USERS:
                load = [next(at) for _ in range(args.each)]
                speeds = {}
                for name, chat in servers.items():
                    start = time.perf_counter()
                    with ThreadPoolExecutor(users) as pool:
                        tokens = sum(pool.map(chat, load))
                    speeds[name] = round(tokens / (time.perf_counter() - start), 1)
                line = json.dumps({"round": number, "users": users, "tokens_per_s": speeds})
                print(line, file=out, flush=True)
                print(line, flush=True)


def measure_arrivals(args: argparse.Namespace) -> None:
    """Write a line for each seed and server: what every request waited for, and what the server counted."""
    with ExitStack() as stack, args.out.open("a", encoding="utf-8") as out:
        servers = {
            name: Remote.of(url) for name, _, url in (one.partition("=") for one in args.url)
        }
        each = {} if servers else commands(args.model, args.llama_server, args.threads, CONTEXT)
        for name, command in each.items():
            port = free_port()
            counted = ["--metrics"] if "llama" in name else []
            command = [*command, *counted, "--port", str(port)]
            servers[name] = stack.enter_context(running(name, command, port))
        seeds = range(args.seed, args.seed + args.rounds)

        def write(line: str) -> None:
            print(line, file=out, flush=True)

        arrivals.measure(servers, seeds, args.each, args.arrivals, write)


def draw(results: Path, picture: Path) -> None:
    """Draw the medians over rounds, a line a server, with the rounds as dots."""
    import matplotlib.pyplot as plt

    from forerun.lab.bench.plots.style import STYLE, looks

    rows = [json.loads(line) for line in results.open(encoding="utf-8")]
    names = list(rows[0]["tokens_per_s"])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7, 3.8))
        for name, look in zip(names, looks(["llama" in name for name in names]), strict=True):
            of = {u: [r["tokens_per_s"][name] for r in rows if r["users"] == u] for u in USERS}
            for users, speeds in of.items():
                axes.plot([users] * len(speeds), speeds, ".", color=look["color"], alpha=0.4)
            middle = [median(of[users]) for users in USERS]
            axes.plot(USERS, middle, label=name, **look)
            print(name, {users: (median(each), each) for users, each in of.items()})
        axes.set(xscale="log", xlabel="users at once", ylabel="tokens a second, together")
        axes.set_ylim(0)
        axes.set_xticks(USERS, [str(users) for users in USERS])
        axes.set_xticks([], minor=True)
        axes.legend()
        figure.savefig(picture, metadata={"Date": None})


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path, nargs="*", help="JSONL with `turns`")
    parser.add_argument("--llama-server", default="llama-server")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--each", type=int, default=10, help="chats of a load")
    parser.add_argument("--settle", type=float, default=10, help="seconds before the first load")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--arrivals", type=float, metavar="PER_S", help="requests a second that come"
    )
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="a server that runs, with --arrivals",
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draw", type=Path, help="draw what --out holds, measure nothing")
    args = parser.parse_args()
    if args.draw:
        (arrivals.draw if args.arrivals else draw)(args.out, args.draw)
    elif args.arrivals:
        measure_arrivals(args)
    else:
        measure(args)


if __name__ == "__main__":
    main()
