"""Ray Serve's side: the application that `serve run` and config files name, and what both ways of starting share."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.deployment import Application
from ray.serve.handle import DeploymentHandle

from forerun.core.config import DEFAULT_MODEL, EngineConfig
from forerun.core.errors import ConfigError
from forerun.server.config import ServerConfig
from forerun.server.ray.gateway import Gateway
from forerun.server.ray.prefix import SLACK
from forerun.server.ray.replica import Replica, ReplicaPlan
from forerun.server.ray.router import PrefixRouter
from forerun.server.run import GRACE_S

HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 5, 20
"""How often Ray asks a replica whether it works, and how long it waits for the word."""
GATEWAY_CPUS = 0.1


class AppArgs(BaseModel):
    """What `forerun.server.ray:app` takes: `serve run ... key=value`, or `args` of an application in a config file."""

    model_config = ConfigDict(extra="forbid")

    model: str = DEFAULT_MODEL
    """A known name, a path that every node has, or a hub name."""
    replicas: int = Field(default=1, ge=1)
    """Replicas; with `max_replicas` the fewest."""
    max_replicas: int | None = None
    """Replicas at most: as many run as the requests need."""
    cpus: float = Field(default=1.0, gt=0)
    """Cores that a replica takes of its node. Its threads are as many, rounded down, and at least one."""
    gateways: int = Field(default=1, ge=1)
    """Processes that take requests from Ray's proxies."""
    routing: Literal["prefix", "random"] = "prefix"
    slack: float = Field(default=SLACK, ge=1)
    """Times its share of the running requests that a replica may have."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Fields of EngineConfig, such as {"drafter": "none", "memory_budget": "600MiB"}."""
    server: dict[str, Any] = Field(default_factory=dict)
    """Fields of ServerConfig, such as {"api_key": "..."}; host and port are those of Ray's proxies."""
    sampling: dict[str, Any] = Field(default_factory=dict)
    """Sampling parameters of requests that do not give their own."""

    def plan(self) -> ReplicaPlan:
        """Make the replicas' plan. Raises ConfigError."""
        threads = max(1, int(self.cpus))
        try:
            engine = EngineConfig(
                **{"model": self.model, "is_server": True, "threads": threads, **self.engine}
            )
            # Ray's proxies are reached by names that they know best; a key is checked in any case
            server = ServerConfig(**{"allowed_hosts": ("*",), "log_requests": False, **self.server})
        except TypeError as error:
            raise ConfigError(f"no such option in engine or server: {error}") from error
        return ReplicaPlan((engine,), server, self.sampling)


@serve.ingress()
class Ingress:
    """The gateway as a deployment of Ray."""

    def __init__(self, replicas: DeploymentHandle, config: ServerConfig) -> None:
        self._gateway = Gateway(replicas, config)

    def __serve_build_asgi_app__(self) -> Gateway:
        return self._gateway


def app(args: AppArgs) -> Application:
    """Build the application. Raises ConfigError for what is out of range."""
    plan = args.plan()
    replicas = replicas_of(
        plan,
        args.replicas,
        most=args.max_replicas,
        cpus=args.cpus,
        by_prefix=args.routing == "prefix",
        slack=args.slack,
    )
    gateway: Any = serve.deployment(
        Ingress,
        name="gateway",
        num_replicas=args.gateways,
        max_ongoing_requests=10_000,
        ray_actor_options={"num_cpus": GATEWAY_CPUS},
        graceful_shutdown_timeout_s=plan.server.drain_timeout + GRACE_S,
    )
    return gateway.bind(replicas, plan.server)


def replicas_of(
    plan: ReplicaPlan,
    num: int,
    *,
    most: int | None = None,
    cpus: float | None = None,
    by_prefix: bool = True,
    slack: float = SLACK,
) -> Application:
    """Make the deployment of `num` replicas, up to `most` where more requests run than `num` can answer at once."""
    if most is not None and most < num:
        raise ConfigError(f"max_replicas must be at least replicas ({num}), got {most}")
    engine, server = plan.engines[0], plan.server
    count: dict[str, Any] = {"num_replicas": num}
    if most is not None:
        count = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=num, max_replicas=most, target_ongoing_requests=engine.max_num_seqs
            )
        }
    made: Any = serve.deployment(
        Replica,
        name="replicas",
        # those above what runs at once wait in the replica, which answers 429 when too many do
        max_ongoing_requests=engine.max_num_seqs + server.max_queue,
        ray_actor_options={"num_cpus": cpus or plan.threads},
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        graceful_shutdown_timeout_s=server.drain_timeout + GRACE_S,
        request_router_config=RequestRouterConfig(
            request_router_class=PrefixRouter,
            request_router_kwargs={"slack": slack, "by_prefix": by_prefix},
        ),
        **count,
    )
    return made.bind(plan)
