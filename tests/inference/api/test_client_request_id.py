"""A client's own request id is logged, cut to a length, and nothing secret that it carries is."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async

from inference.dispatch.queue import DispatchQueue
from signalbox import secret_files
from tests.fixtures.log_lines import product_formatter
from tests.fixtures.stored_text import stored_text
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.bodies import CHAT, chat

pytestmark = pytest.mark.django_db(transaction=True)

HEADER = "X-Client-Request-Id"


@pytest.fixture(params=["console", "json"])
def written(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What the processes write to their logs, in both formats."""
    before = logging.getLogger().handlers[:], logging.getLogger().level
    text = io.StringIO()
    formatter = product_formatter(request.param)
    handler = logging.StreamHandler(text)
    handler.setFormatter(formatter)
    logging.getLogger().addHandler(handler)
    logging.getLogger().setLevel(logging.DEBUG)
    yield text
    logging.getLogger().handlers[:], level = before
    logging.getLogger().setLevel(level)


@pytest.fixture
def _store_fails(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Something to log for every request, which repeats a key besides."""

    def unreachable(*_: Any) -> bool:
        raise redis.ConnectionError(f"no answer to {key}")

    monkeypatch.setattr(DispatchQueue, "depths", unreachable)
    monkeypatch.setattr(DispatchQueue, "take_place", unreachable)


@pytest.mark.usefixtures("_store_fails")
async def test_a_clients_request_id_is_logged_cut_and_not_answered(
    api: AsgiClient, written: io.StringIO
) -> None:
    answer = await api.post(CHAT, chat(), headers={HEADER: "job-17 " + "x" * 500})
    assert answer.headers["x-request-id"].startswith("req_")
    assert "job-17" not in json.dumps(answer.headers)
    said = written.getvalue()
    assert "job-17 " + "x" * 121 in said
    assert "x" * 122 not in said


@pytest.mark.usefixtures("_store_fails")
@pytest.mark.parametrize("before", ["", "job ", "x" * 100, "x" * 110, "x" * 112])
async def test_a1_a_key_in_it_is_in_no_log_no_metric_no_answer_and_no_row(
    api: AsgiClient, key: str, written: io.StringIO, before: str
) -> None:
    name, _, secret = key.rpartition("_")
    answer = await api.post(CHAT, chat(), headers={HEADER: before + key})
    assert answer.status == 503
    token = secret_files.read_or_create("metrics_token")
    metrics = await AsgiClient().get("/metrics", headers={"Authorization": f"Bearer {token}"})
    assert metrics.status == 200
    said = written.getvalue()
    # The line is there, with the part of the key that is public.
    assert "client_request_id" in said
    assert (before + name)[:128] in said
    rows = await sync_to_async(stored_text)()
    for place in (said, metrics.body.decode(), answer.body.decode(), json.dumps(answer.headers), rows):
        # Not even the few characters of it that are left where it was cut.
        assert f"{name}_{secret[0]}" not in place
        assert secret[:8] not in place
