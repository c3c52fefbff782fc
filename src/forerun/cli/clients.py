"""Coding agents that `forerun launch` starts: how each is told of the server, and by which words it is started."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forerun.core.errors import ConfigError, reason
from forerun.core.paths import expanded
from forerun.system import files

NAME = "forerun"
BACKUP = ".before-forerun"
"""Ending of a copy of what was there, made once."""
_BEGIN, _END = "# forerun launch: begin", "# forerun launch: end"
_BLOCK = re.compile(rf"\n*^{_BEGIN}$.*?^{_END}$\n?", re.MULTILINE | re.DOTALL)

_MEANT = re.compile(r"\b(URL|MODEL|FILE)\b(?!=)")

Write = Callable[[str, str, str], str]
"""Changes a file's text so that it names a server's address, without /v1, and a model."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client. In its words URL is the server's address, without /v1, MODEL the model's name, FILE where `file` is."""

    program: str
    package: str
    """How it is installed."""
    words: tuple[str, ...] = ()
    """Behind the program."""
    variables: Mapping[str, str] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    """Words of the program that tell it of the server, run before it is started."""
    folder: str = ""
    """Where its configuration lies, unless the variable `folder_variable` names another folder."""
    folder_variable: str = ""
    file: str = ""
    """Its configuration there; empty where it needs none."""
    write: Write | None = None

    def path(self) -> Path | None:
        """Return its configuration's place."""
        if not self.file:
            return None
        return expanded(os.environ.get(self.folder_variable) or self.folder) / self.file

    def filled(self, words: tuple[str, ...], url: str, model: str) -> list[str]:
        """Write the address, the model and the configuration's place into words."""
        meant = {"URL": url, "MODEL": model, "FILE": str(self.path() or "")}
        return [_MEANT.sub(lambda found: meant[found[0]], word) for word in words]

    def environment(self, url: str, model: str) -> dict[str, str]:
        """Return the variables that tell it of the server."""
        return {
            name: self.filled((value,), url, model)[0] for name, value in self.variables.items()
        }

    def configuration(self, url: str, model: str) -> tuple[Path, str] | None:
        """Return its file and what is to stand in it; None without one. Raises ConfigError for one that is not read."""
        path = self.path()
        if path is None or self.write is None:
            return None
        try:
            before = path.read_text("utf-8") if path.exists() else ""
            return path, self.write(before, url, model)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} is not changed, for it cannot be read: {reason(error)}; "
                "`--print` with it moved away shows what to write there"
            ) from error

    def save(self, url: str, model: str) -> Path | None:
        """Write its configuration, and keep a copy of what was there next to it. Raises ConfigError."""
        made = self.configuration(url, model)
        if made is None:
            return None
        path, text = made
        try:
            before = path.read_bytes() if path.exists() else b""
            if before == text.encode():
                return path
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = path.with_name(path.name + BACKUP)
            if before and not kept.exists():
                files.replace(kept, before)
            files.replace(path, text.encode())
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {reason(error)}") from error
        return path


def _codex(before: str, url: str, model: str) -> str:
    """Put a provider behind what is there, in the place of the one put there last. Raises ValueError."""
    rest = _BLOCK.sub("\n", before).strip("\n")
    block = (
        f'{_BEGIN}\n[model_providers.{NAME}]\nname = "{NAME}"\nbase_url = "{url}/v1"\n'
        f'wire_api = "responses"\nstream_idle_timeout_ms = 3600000\n{_END}\n'
    )
    text = f"{rest}\n\n{block}" if rest else block
    tomllib.loads(text)
    return text


def _opencode(before: str, url: str, model: str) -> str:
    """Add a provider to the object that is there. Raises ValueError."""
    given = json.loads(before or "{}")
    if not isinstance(given, dict) or not isinstance(given.setdefault("provider", {}), dict):
        raise ValueError("it has no object of providers")
    given["provider"][NAME] = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1"},
        "models": {model: {"tool_call": True}},
    }
    return json.dumps(given, indent=2, ensure_ascii=False) + "\n"


def _continue(before: str, url: str, model: str) -> str:
    """Write a file of our own, which Continue is started with."""
    quoted = json.dumps(model)
    return (
        "name: forerun\nversion: 0.0.1\nschema: v1\nmodels:\n"
        f'  - {{name: {quoted}, provider: openai, model: {quoted}, apiBase: "{url}/v1", apiKey: none}}\n'
    )


CLIENTS: Mapping[str, Client] = {
    "claude": Client(
        "claude",
        "npm install -g @anthropic-ai/claude-code",
        variables={
            "ANTHROPIC_BASE_URL": "URL",
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": "MODEL",
        },
    ),
    "cline": Client(
        "cline",
        "npm install -g cline",
        first=("auth", "-p", "openai-compatible", "-k", "none", "-m", "MODEL", "-b", "URL/v1"),
    ),
    "codex": Client(
        "codex",
        "npm install -g @openai/codex",
        ("-c", f"model_provider={NAME}", "-c", "model=MODEL"),
        folder="~/.codex",
        folder_variable="CODEX_HOME",
        file="config.toml",
        write=_codex,
    ),
    "continue": Client(
        "cn",
        "npm install -g @continuedev/cli",
        ("--config", "FILE"),
        folder="~/.continue",
        file="forerun.yaml",
        write=_continue,
    ),
    "opencode": Client(
        "opencode",
        "npm install -g opencode-ai",
        ("-m", f"{NAME}/MODEL"),
        folder="~/.config",
        folder_variable="XDG_CONFIG_HOME",
        file="opencode/opencode.json",
        write=_opencode,
    ),
    "qwen": Client(
        "qwen",
        "npm install -g @qwen-code/qwen-code",
        ("--auth-type", "openai"),
        {"OPENAI_BASE_URL": "URL/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "MODEL"},
    ),
}
"""By what people call them; docs/agents.md says which versions were run."""
