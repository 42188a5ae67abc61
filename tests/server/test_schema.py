"""Requests made from our own OpenAPI document, valid and not: every answer is one that the document foresees."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

UNSERVED = 501
"""Chat and properties answer nothing else, as documented."""
LEFT_OUT = ("model", "instruction", "prompt_name", "encoding_format", "embedding_types", "top_n", "dimensions")
"""Of valid bodies: a random value of these is hardly ever one that is served."""
SERVED = {
    "/v1/embeddings": {"input": ["rain", "the cat"]},
    "/v1/rerank": {"query": "rain", "documents": ["the cat", "the rain"]},
    "/embed": {"inputs": ["rain", "the cat"]},
    "/v2/embed": {"texts": ["rain", "the cat"], "input_type": "search_query"},
    "/api/embed": {"input": ["rain", "the cat"]},
}
"""Bodies that are served: sent as they are, and put into random ones that lack the last of these fields."""
QUICK = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


@pytest.mark.slow
async def test_every_answer_is_one_that_the_document_foresees(client: Any) -> None:
    base = f"http://127.0.0.1:{client.port}"
    document = await (await client.get("/openapi.json")).json()
    reached = await asyncio.to_thread(call_all, document, base)
    assert {f"POST {path}" for path in SERVED} <= reached


def call_all(document: dict[str, Any], base: str) -> set[str]:
    """Call every operation; return those that answered 200 at least once."""
    import requests
    import schemathesis
    from schemathesis.checks import not_a_server_error
    from schemathesis.generation import GenerationMode
    from schemathesis.specs.openapi import checks

    wanted = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    session, reached = requests.Session(), set[str]()

    def send(case: Any) -> None:
        reply = case.call(base_url=base, session=session, timeout=30)
        if reply.status_code == 200:
            reached.add(case.operation.label)
        if reply.status_code != UNSERVED:
            case.validate_response(reply, checks=wanted)

    for found in schemathesis.openapi.from_dict(document).get_all_operations():
        operation = found.ok()
        if operation.method.upper() == "POST" and operation.path in SERVED:
            send(operation.Case(body=SERVED[operation.path], media_type="application/json"))
        many(operation.as_strategy(generation_mode=GenerationMode.POSITIVE).map(likelier), send)
        with contextlib.suppress(Unsatisfiable):  # there is no wrong body where anything is right
            many(operation.as_strategy(generation_mode=GenerationMode.NEGATIVE), send)
    return reached


def likelier(case: Any) -> Any:
    """The same request with a better chance to be served."""
    if isinstance(case.body, dict):
        body = {key: value for key, value in case.body.items() if key not in LEFT_OUT}
        served = SERVED.get(case.path, {})
        case.body = body if all(body.get(key) for key in list(served)[-1:]) else {**body, "content": None, **served}
    return case


def many(cases: Any, send: Callable[[Any], None]) -> None:
    """Send some cases of a strategy."""

    @QUICK
    @given(cases)
    def one(case: Any) -> None:
        send(case)

    one()
