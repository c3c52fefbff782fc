"""`forerun serve --replicas N`: a Ray of one's own, or one that runs, with our server as its gateway."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial

import ray
from ray import serve
from ray.serve.deployment import Application
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig

from forerun.core.errors import ConfigError, LoadError
from forerun.server.ray.deploy import replicas_of
from forerun.server.ray.gateway import Gateway
from forerun.server.ray.replica import ReplicaPlan
from forerun.server.run import HttpServer, bind
from forerun.system.device import num_cores

LOGGING = LoggingConfig(log_level="WARNING", enable_access_log=False)
"""Of Ray Serve: the replicas log requests themselves."""
REACH_S = 5.0
"""How long a Ray elsewhere may take to accept a connection."""


def serve_replicas(
    plan: ReplicaPlan,
    num: int,
    address: str | None = None,
    say: Callable[[str], object] = lambda line: None,
    check: Callable[[], object] = lambda: None,
    *,
    by_prefix: bool = True,
) -> None:
    """Serve models by `num` processes of Ray until a signal comes; the arguments are those of `serve`.

    `by_prefix`: requests meet the replica that holds their prompt's beginning; else they are spread at random.

    Without an address Ray is started here, and ends with the server; a Ray that runs already keeps running.

    Raises ConfigError where the address cannot be had, Ray cannot be reached or has too few cores, and LoadError where
    a replica cannot load the model.
    """
    listener = bind(plan.server.host, plan.server.port)
    try:
        check()
        _quiet()
        name = f"forerun-{listener.getsockname()[1]}"
        deployment = replicas_of(plan, num, by_prefix=by_prefix)
        with _cluster(plan, num, address, say), _deployed(deployment, name) as replicas:
            gateway = Gateway(replicas, plan.server)
            _listen(gateway, listener, plan, partial(_say_ready, say, plan, num))
    finally:
        listener.close()


def _listen(
    gateway: Gateway, listener: socket.socket, plan: ReplicaPlan, ready: Callable[[str], object]
) -> None:
    port, host = listener.getsockname()[1], plan.server.host
    server = HttpServer(
        gateway,
        plan.server,
        ready,
        num_running=lambda: gateway.num_running,
        cancel_all=gateway.cancel_all,
    )
    # Ray has taken SIGTERM, and for the time of starting Ctrl-C ends all at once
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ready(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}")
    server.run(sockets=[listener])


def _say_ready(say: Callable[[str], object], plan: ReplicaPlan, num: int, line: str) -> None:
    say(line)
    if line.startswith("listening"):
        models = ", ".join(one.model for one in plan.engines)
        threads = f"{plan.threads} thread{'s' * (plan.threads > 1)}"
        say(f"ready: {models}, {num} replica{'s' * (num > 1)} of {threads}")


@contextlib.contextmanager
def _cluster(
    plan: ReplicaPlan, num: int, address: str | None, say: Callable[[str], object]
) -> Iterator[None]:
    """Start a Ray, or join one. Raises ConfigError."""
    needed, cores = num * plan.threads, num_cores()
    # lines of replicas about requests, where those are wanted; else Ray keeps them in its own files
    settings = {"log_to_driver": bool(plan.server.log_requests), "configure_logging": False}
    if address is None:
        if needed > cores:
            raise ConfigError(_too_few(needed, cores, "this machine"))
        say(f"starting Ray on this machine, {cores} cores")
        ray.init(address="local", num_cpus=cores, include_dashboard=False, **settings)
    else:
        _reach(address)
        try:
            ray.init(address=address, **settings)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(f"no Ray at {address}: {_why(error)}") from error
        cores = int(ray.cluster_resources().get("CPU", 0))
        if needed > cores:
            ray.shutdown()
            raise ConfigError(_too_few(needed, cores, f"the cluster at {address}"))
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _deployed(deployment: Application, name: str) -> Iterator[DeploymentHandle]:
    """Start the replicas, and end them; what else runs on the cluster goes on. Raises LoadError."""
    serve.start(proxy_location="Disabled", logging_config=LOGGING)
    try:
        yield _run(deployment, name)
    finally:
        serve.delete(name)


def _run(deployment: Application, name: str) -> DeploymentHandle:
    try:
        return serve.run(deployment, name=name, route_prefix=None, logging_config=LOGGING)
    except (RuntimeError, RayServeException) as error:
        status = serve.status().applications.get(name)
        found = [one.message for one in status.deployments.values()] if status else []
        why = _cause(found) or _line(error)
        raise LoadError(f"the replicas could not start: {why}") from error


def _quiet() -> None:
    """Leave the terminal to what we say ourselves."""
    for name in ("ray", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _reach(address: str) -> None:
    """Raise ConfigError if nothing listens at an address: Ray itself would wait for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    if not (host and port.isdecimal()):
        raise ConfigError(
            f"--ray-address must be auto or HOST:PORT, such as 10.0.0.1:6379, got {address}"
        )
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"no Ray at {address}: {_line(error)}; ray start --head starts one"
        ) from error


def _too_few(needed: int, there: int, where: str) -> str:
    return (
        f"the replicas need {needed} cores in total, {where} has {there}: "
        "give a smaller --replicas or --threads"
    )


def _cause(messages: list[str]) -> str:
    """Find our own words in what Ray tells of a replica that failed."""
    for text in messages:
        lines = [line.strip() for line in text.splitlines() if "Error: " in line]
        if lines:
            return lines[-1].partition("Error: ")[2]
    return ""


def _why(error: BaseException) -> str:
    """Say why Ray could not be joined; Ray itself tells what matters at the bottom of a chain."""
    cause: BaseException | None = error
    while cause is not None:
        if "AuthToken" in str(cause):
            return "it requires a token; see https://docs.ray.io/en/latest/ray-security/token-auth.html"
        cause = cause.__cause__ or cause.__context__
    return _line(error)


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
