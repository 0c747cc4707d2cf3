from __future__ import annotations

from pathlib import Path

import pytest

from inference.api.chat_completions import ChatCompletionRequest
from inference.api.completions import CompletionRequest
from inference.api.errors import ErrorCode
from inference.api.sampling_parameters import StreamOptions
from inference.api.urls import urlpatterns
from signalbox.configuration import ROOT

PAGE = (Path(ROOT) / "docs" / "api.md").read_text()


def test_the_page_names_every_error_code() -> None:
    assert [code.value for code in ErrorCode if f"`{code.value}`" not in PAGE] == []


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest, StreamOptions])
def test_the_page_names_every_parameter(model: type[ChatCompletionRequest]) -> None:
    assert [name for name in model.model_fields if f"`{name}`" not in PAGE] == []


def test_the_page_names_every_route() -> None:
    routes = [str(pattern.pattern) for pattern in urlpatterns[:-1]]
    words = [
        route.replace("<path:model_id>", "{id}").replace("<str:generation_id>", "{id}") for route in routes
    ]
    assert [word for word in words if f"/v1/{word}`" not in PAGE] == []
