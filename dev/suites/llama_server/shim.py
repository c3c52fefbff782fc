"""Stands where the suite looks for llama-server: becomes `forerun serve` with the same options.

Flags that forerun reads itself go through as they are. What is left here is where files are: the suite names models of
a hub, and its own folders. FORERUN_SUITE_MODELS has the models that take their places. Flags that ask for what forerun
always does, or that change no answer, are left out.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dev.suites.llama_server import fork_server

NAMED = ("--hf-repo", "--hf-file", "--model", "--model-url", "-m")
LEFT_OUT = (
    *("--offline", "--kv-unified", "--swa-full", "--cont-batching", "--no-warmup", "--verbose"),
    *(
        "--log-disable",
        "--cache-prompt",
        "--no-cache-prompt",
        "--no-cache-idle-slots",
        "--no-mmproj",
    ),
    *("--no-context-shift", "--cache-idle-slots"),
)
LEFT_OUT_WITH_VALUE = ("--cache-ram", "--cache-reuse", "--threads-http", "--reasoning-format")
MODELS = {"infill": "infill.gguf"}
"""By a word of the name on the hub; all others are `stories.gguf`."""


def translate(arguments: list[str], models: Path) -> list[str]:
    """The command line of forerun for one of llama-server."""
    words, given, rest = iter(arguments), "", list[str]()
    for word in words:
        if word in NAMED:
            given += next(words)
        elif word == "--ctx-size":  # there all sequences share it, here each has it
            num_tokens = int(next(words))
            shares = "--parallel" in arguments and "--kv-unified" not in arguments
            places = int(arguments[arguments.index("--parallel") + 1]) if shares else 1
            rest += [word, str(num_tokens // places)]
        elif word == "--reasoning":
            is_on = {"on": True, "off": False}.get(next(words))
            own = ["--chat-template-kwargs", json.dumps({"enable_thinking": is_on})]
            rest += own if is_on is not None else []
        elif word in LEFT_OUT_WITH_VALUE:
            next(words)
        elif word in LEFT_OUT:
            continue
        else:
            rest.append({"--cors-origins": "--allowed-origins"}.get(word, word))
    if "--models-dir" not in rest and given:
        name = next((file for key, file in MODELS.items() if key in given), "stories.gguf")
        rest = ["--model", str(models / name), *rest]
    return rest


if __name__ == "__main__":
    command = ["serve", *translate(sys.argv[1:], Path(os.environ["FORERUN_SUITE_MODELS"]))]
    sys.exit(fork_server.order(Path(os.environ["FORERUN_SUITE_FORK_SERVER"]), command))
