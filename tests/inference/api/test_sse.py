"""What is sent between events is none, also to OpenAI's own client."""

from __future__ import annotations

import pytest
from openai._streaming import SSEDecoder

from inference.api import sse


@pytest.mark.parametrize(
    "comment", [sse.KEEP_ALIVE, sse.comment("queued", position=3), sse.comment("accepted")]
)
def test_a_comment_between_events_that_have_ids_is_no_event(comment: bytes) -> None:
    stream = [
        comment,
        sse.event("{}", id_="1"),
        comment,
        comment,
        sse.event("[1]", id_="2"),
        comment,
        sse.DONE,
    ]
    assert [event.data for event in SSEDecoder().iter_bytes(iter(stream))] == ["{}", "[1]", "[DONE]"]
