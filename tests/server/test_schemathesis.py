"""Schemathesis over the document of the API: all requests it thinks of are answered as the document says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, seed, settings

from forerun.llm import LLM
from forerun.server.app import new_app
from forerun.server.config import ServerConfig
from forerun.server.models import ServedModels
from tests.server.conftest import running

pytestmark = [pytest.mark.clients, pytest.mark.slow]

LIMITS = settings(
    max_examples=20, database=None, deadline=None, suppress_health_check=[*HealthCheck]
)


def documented() -> dict[str, list[str]]:
    """The methods of each path in the document."""
    paths = new_app(ServedModels([], ServerConfig())).openapi()["paths"]
    return {path: [*methods] for path, methods in paths.items()}


TRIED = [
    (path, mode)
    for path, methods in documented().items()
    for mode in (("positive", "negative") if "post" in methods else ("positive",))
]


@pytest.fixture(scope="module")
def operations(default_model):
    """The operations of the document by their path, of a server whose answers are short."""
    import schemathesis

    load = lambda: LLM(str(default_model), drafter="prompt_lookup", max_model_len=64)  # noqa: E731
    with running(load, embeddings=True) as (url, _):
        document = schemathesis.openapi.from_url(f"{url}/openapi.json")
        yield {found.ok().path: found.ok() for found in document.get_all_operations()}


@pytest.mark.parametrize(("route", "mode"), TRIED)
def test_a_route_does_as_the_document_says(operations, route, mode):
    from schemathesis import GenerationMode, checks

    checks.load_all_checks()
    # Schemas say names and types; what values may be, the answers say.
    left_out = [checks.CHECKS.get_one("positive_data_acceptance")]
    if route in ("/infill", "/mcp-rest/tools/call"):  # 501 of what cannot, which is documented
        left_out.append(checks.CHECKS.get_one("not_a_server_error"))

    @seed(16)
    @LIMITS
    @given(case=operations[route].as_strategy(generation_mode=GenerationMode(mode)))
    def holds(case):
        case.call_and_validate(excluded_checks=left_out, timeout=60)

    holds()
