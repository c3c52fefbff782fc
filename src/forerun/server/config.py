"""How a server listens and what it allows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from forerun.core.errors import ConfigError, check_least
from forerun.core.options import option
from forerun.core.params import MAX_N

LOCAL = "127.0.0.1"
REASONING = ("auto", "on", "off")
MAX_TOKENS = 16_384
"""Tokens of an answer where neither the request nor the server's option says: a model that repeats itself ends."""
MAX_TEXTS = 2048
"""Texts of a request of embeddings, as many as OpenAI takes."""
POOLINGS = ("auto", "last", "mean", "none")
_LEAST = {
    **dict.fromkeys(("max_prompt_len", "max_connections", "models_max", "max_schema_depth"), 1),
    **dict.fromkeys(("max_queue", "drain_timeout", "stream_interval"), 0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The bounds of a server. Raises ConfigError for a number out of range."""

    host: str = option(LOCAL, group="Address")
    """Address to listen on; 0.0.0.0 is every network of this machine."""
    port: int = option(8000, group="Address")
    """Port to listen on; 0 takes one that is free."""
    api_key: str | None = option(None, metavar="KEY")
    """Key that every request but those to /health and for the page's files must send."""
    served_model_name: tuple[str, ...] = option((), "-a", "--alias", metavar="NAME")
    """Names of the model in requests, several after one another or with commas; default: the model's name as typed.

    Of several models each has one, in their order.
    """
    strict_requests: bool = option(False)
    """Refuse a request with an unknown field; else the header x-forerun-ignored names what is left out."""
    strict_model_name: bool = option(False)
    """Refuse a request that calls the model by another name; else one model answers to any."""
    chat_template: str | None = option(None, "--chat-template-file", metavar="FILE")
    """A chat template in place of the model's own: a file of Jinja, its text, or `chatml`."""
    chat_template_kwargs: str | None = option(None, metavar="JSON")
    """JSON: what the template reads besides where a request does not say, such as {"enable_thinking": false}."""
    reasoning: Literal["auto", "on", "off"] = option("auto")
    """Whether models think where a request does not say; auto: as their templates have it."""
    reasoning_budget: int | None = option(None, metavar="TOKENS")
    """Tokens of a thought where a request does not say: 0 for none, -1 for as many as the model writes."""
    keep_billing_header: bool = option(False)
    """Give the model Claude Code's first system block, which differs by conversation and so ends the prefix cache."""
    models_max: int | None = option(None, group="Bounds")
    """Models that are loaded at once, of several; the one that was not used for longest goes. Default: all."""
    sleep_idle_seconds: float | None = option(None, metavar="SECONDS", group="Bounds")
    """Unload a model that was unused for so long; the next request loads it again. Default, -1: never."""
    load_timeout: float = option(120.0, metavar="SECONDS", group="Bounds")
    """Seconds that a request waits for one of several models to be loaded."""
    embeddings: bool = option(False, "--embedding", "--reranking", "--rerank")
    """Answer /v1/embeddings and /v1/rerank with the model's states."""
    pooling: Literal["auto", "last", "mean", "none"] = option("auto")
    """Which state of a text is its vector: `last`, `mean`, `none` (one for each token), or as the model's file says."""
    slots: bool = option(True)
    """Answer /slots with what each sequence does."""
    metrics_prefix: str = option("forerun:")
    """Prefix of the names in /metrics; with vllm: dashboards and gateways made for vLLM read them."""
    allowed_origins: tuple[str, ...] = option((), metavar="ORIGIN")
    """Origins whose pages may call the server from a browser; none by default."""
    allowed_hosts: tuple[str, ...] = option((), metavar="NAME")
    """Further names that the server is reached by, * for any; a server with a key answers to all."""
    allow_pull: bool = option(False)
    """Let clients fetch models of the Hugging Face Hub by /api/pull; those of a server with a key may without it."""
    mcp_server: tuple[str, ...] = option((), "--mcp-config", metavar="[NAME=]URL")
    """MCP servers (streamable HTTP) whose tools the page may offer the model, or a file mcp.json that lists them.

    Their calls are shown and confirmed in the page. No other address is ever asked.
    """
    page: bool = option(True, "--ui", "--webui")
    """Answer / with a page to chat in, which is loaded without the key."""
    open: bool = option(False)
    """Open the page in the browser once the model is ready."""
    max_prompt_len: int | None = option(None, group="Bounds")
    """Tokens of a prompt, at most; default: as many as the context holds."""
    max_n: int = option(MAX_N, group="Bounds")
    """Completions of a prompt that a request may ask for."""
    max_queue: int = option(256, group="Bounds")
    """Sequences that may wait for a place; more are refused with 429."""
    max_schema_kb: float = option(64.0, group="Bounds")
    """Size of a schema, grammar or expression that an answer must follow, in kB; of tools each has its own schema."""
    max_schema_depth: int = option(64, group="Bounds")
    """Levels of objects and lists in a JSON schema."""
    max_body_mb: float = option(4.0, group="Bounds")
    """Size of a request's body, in MB."""
    body_timeout: float = option(30.0, metavar="SECONDS", group="Bounds")
    """Seconds in which a request's body must arrive."""
    idle_timeout: float = option(30.0, metavar="SECONDS")
    """Seconds that a connection may be open without a request, or with one whose head is not complete."""
    max_connections: int | None = option(None, group="Bounds")
    """Connections at once; one more closes the one that was idle longest. Default: 4096, or as ulimit -n allows."""
    drain_timeout: float = option(30.0, metavar="SECONDS")
    """Seconds that running requests have left after SIGTERM or Ctrl-C."""
    stream_interval: float = option(0.02, metavar="SECONDS")
    """Seconds between two sends of a stream, at least; what comes sooner is sent with the next."""
    sse_ping_interval: float = option(10.0, metavar="SECONDS")
    """Seconds after which a stream without anything to send sends an event without text; 0, -1: never."""
    log_requests: bool | None = option(None)
    """A line for each request that has ended, and every 10 s how far its prompt is. Default: in a terminal."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be from 0 to 65535, got {self.port}")
        if not 1 <= self.max_n <= MAX_N:
            raise ConfigError(f"max_n must be from 1 to {MAX_N}, got {self.max_n}")
        for name, least in _LEAST.items():
            check_least(name, getattr(self, name), least)
        if not (self.sse_ping_interval >= 0 or self.sse_ping_interval == -1):
            raise ConfigError(
                f"sse_ping_interval must be at least 0, or -1 for never, got {self.sse_ping_interval}"
            )
        for name in (
            *("max_body_mb", "max_schema_kb", "body_timeout", "idle_timeout", "load_timeout"),
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, got {getattr(self, name)}")
        _check_among("reasoning", self.reasoning, REASONING)
        _check_among("pooling", self.pooling, POOLINGS)
        if not re.fullmatch("[a-zA-Z_][a-zA-Z0-9_:]*", self.metrics_prefix):
            raise ConfigError(
                f"metrics_prefix must be letters, digits, _ and :, such as vllm:, got {self.metrics_prefix!r}"
            )
        names = (part.strip() for name in self.served_model_name for part in name.split(","))
        object.__setattr__(self, "served_model_name", tuple(filter(None, names)))
        if self.api_key is not None and not self.api_key.strip():
            raise ConfigError("the API key is empty")

    @property
    def is_local(self) -> bool:
        """True if only this machine reaches it."""
        return self.host.startswith("127.") or self.host in ("::1", "localhost")

    @property
    def max_body_nbytes(self) -> int:
        """The largest body that is read."""
        return int(self.max_body_mb * 1e6)


def _check_among(name: str, given: str, allowed: tuple[str, ...]) -> None:
    if given not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {given}")
