from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from django.contrib.staticfiles import finders
from django.urls import get_resolver
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

from inference.api.resource import endpoints_of
from inference.api.urls import urlpatterns
from tests.inference.api.asgi_client import AsgiClient, events_of
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    generated: dict[str, Any] = SchemaGenerator().get_schema(request=None, public=True)
    return json.loads(json.dumps(generated))


def conforms(schema: dict[str, Any], name: str, instance: Any) -> None:
    jsonschema.validate(
        instance, {"$ref": f"#/components/schemas/{name}", "components": schema["components"]}
    )


@pytest.mark.slow
def test_the_description_is_valid_openapi(schema: dict[str, Any]) -> None:
    validate_schema(schema)


def test_every_route_below_v1_is_described_with_its_method(schema: dict[str, Any]) -> None:
    *routes, unknown = urlpatterns
    assert not endpoints_of(unknown.callback)
    assert all(endpoints_of(route.callback) for route in routes)
    endpoints = [endpoint for route in routes for endpoint in endpoints_of(route.callback)]
    described = {
        operation["operationId"]: (path, method)
        for path, item in schema["paths"].items()
        for method, operation in item.items()
        if path.startswith("/v1/")
    }
    assert set(described) == {endpoint.name for endpoint in endpoints}
    for endpoint in endpoints:
        assert described[endpoint.name][1] == endpoint.method.lower()
    for name, (path, _) in described.items():
        resolved = get_resolver().resolve(re.sub(r"{\w+}", "x", path))
        assert name in {endpoint.name for endpoint in endpoints_of(resolved.func)}


def test_every_reference_leads_somewhere(schema: dict[str, Any]) -> None:
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(schema)))
    assert references <= set(schema["components"]["schemas"])


def test_every_route_needs_a_key_and_describes_its_errors(schema: dict[str, Any]) -> None:
    for path, item in schema["paths"].items():
        for operation in item.values():
            if path.startswith("/v1/"):
                assert operation["security"] == [{"bearer": []}, {"apiKey": []}]
                assert {"401", "403", "500", "503"} <= set(operation["responses"])


@pytest.mark.django_db(transaction=True)
async def test_what_is_answered_is_what_is_described(
    api: AsgiClient, hand: Hand, schema: dict[str, Any]
) -> None:
    for path, body, whole, chunk in (
        (CHAT, chat(), "ChatCompletion", "ChatCompletionChunk"),
        (TEXT, text(), "Completion", "Completion"),
    ):
        conforms(schema, {CHAT: "ChatCompletionRequest", TEXT: "CompletionRequest"}[path], body)
        async with api.open("POST", path, body) as exchange:
            await hand.answer(["Hi"])
            answer = await exchange.end()
        conforms(schema, whole, answer.json())
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        async with api.open("POST", path, streamed) as exchange:
            await hand.answer(["Hi"])
            stream = await exchange.end()
        for _, data in events_of(stream.body)[:-1]:
            conforms(schema, chunk, json.loads(data))
        record = await api.get(f"/v1/generations/{answer.headers['x-signalbox-generation']}")
        conforms(schema, "GenerationRecord", record.json())
    conforms(schema, "ModelList", (await api.get("/v1/models")).json())
    conforms(schema, "Model", (await api.get("/v1/models/tiny/model")).json())
    conforms(schema, "ErrorAnswer", (await api.get("/v1/models/other")).json())


@pytest.mark.django_db(transaction=True)
async def test_the_description_is_served_to_everybody(api: AsgiClient) -> None:
    answer = await AsgiClient().get("/api/schema/?format=json")
    assert answer.status == 200
    assert set(answer.json()["paths"]) >= {CHAT, TEXT, "/v1/models"}


@pytest.mark.django_db(transaction=True)
async def test_the_documentation_page_asks_no_third_party_and_needs_no_inline_script(
    api: AsgiClient, plain_static: None
) -> None:
    page = await AsgiClient().get("/api/docs/")
    script = await AsgiClient().get("/api/docs/?script=")
    assert page.status == script.status == 200
    html = page.body.decode()
    assert not re.findall(r"https?://(?!localhost)", html + script.body.decode())
    assert not re.search(r"<script>|<script(?![^>]*src=)", html)
    assert '"validatorUrl": null' in script.body.decode()
    sources = re.findall(r'(?:src|href)="/static/([^"]+)"', html)
    assert sources
    assert all(finders.find(source) for source in sources)
