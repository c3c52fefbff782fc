"""Schemathesis over the document of the API: all requests it thinks of are answered as the document says."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, seed, settings

from forerun.llm import LLM
from tests.server.conftest import running

pytestmark = pytest.mark.slow

BODIES = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/chat/completions/input_tokens",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/completion",
    "/infill",
    "/embedding",
    "/apply-template",
    "/tokenize",
    "/detokenize",
]
ROUTES = [
    *BODIES,
    "/health",
    "/v1/models",
    "/v1/models/{name}",
    "/props",
    "/slots",
    "/metrics",
    "/version",
]
LIMITS = settings(
    max_examples=20, database=None, deadline=None, suppress_health_check=[*HealthCheck]
)


@pytest.fixture(scope="module")
def operations(default_model):
    """The operations of the document by their path, of a server whose answers are short."""
    schemathesis = pytest.importorskip("schemathesis", reason="the document is tested with it")
    load = lambda: LLM(str(default_model), drafter="prompt_lookup", max_model_len=64)  # noqa: E731
    with running(load, embeddings=True) as (url, _):
        document = schemathesis.openapi.from_url(f"{url}/openapi.json")
        yield {found.ok().path: found.ok() for found in document.get_all_operations()}


def test_every_route_of_the_document_is_tried(operations):
    assert operations.keys() == {*ROUTES}


@pytest.mark.parametrize(
    ("route", "mode"),
    [*((route, "positive") for route in ROUTES), *((route, "negative") for route in BODIES)],
)
def test_a_route_does_as_the_document_says(operations, route, mode):
    from schemathesis import GenerationMode, checks

    checks.load_all_checks()
    # Schemas say names and types; what values may be, the answers say.
    left_out = [checks.CHECKS.get_one("positive_data_acceptance")]
    if route == "/infill":  # 501 of a model that cannot, as llama-server answers; it is documented
        left_out.append(checks.CHECKS.get_one("not_a_server_error"))

    @seed(16)
    @LIMITS
    @given(case=operations[route].as_strategy(generation_mode=GenerationMode(mode)))
    def holds(case):
        case.call_and_validate(excluded_checks=left_out, timeout=60)

    holds()
