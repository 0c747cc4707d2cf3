from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from django.http import QueryDict
from django.test import RequestFactory
from hypothesis import given
from hypothesis import strategies as st

from inference.api.errors import ApiError, ErrorCode
from inference.api.fields import Range
from inference.api.queries import NoQuery, QueryModel, parameters_of, read_query


class Question(QueryModel):
    """Asked for by nobody but this test."""

    since: Annotated[int, Range(0, 100)]
    """From when on."""
    until: Annotated[int, Range(0, 100)] | None = None
    """Until when."""
    name: str | None = None
    """Whose."""
    every: bool = False
    """All of it."""
    order: Literal["asc", "desc"] = "asc"
    """Which way."""
    groups: list[Literal["a", "b"]] = []
    """By what."""


def read(query: str) -> Question:
    return read_query(RequestFactory().get(f"/?{query}"), Question)


def test_values_have_their_types() -> None:
    question = read("since=7&until=9&name=5&every=true&order=desc&groups=a&groups=b")
    assert question.model_dump() == {
        "since": 7,
        "until": 9,
        "name": "5",
        "every": True,
        "order": "desc",
        "groups": ["a", "b"],
    }


def test_what_is_absent_is_what_was_declared() -> None:
    assert read("since=0") == Question(since=0)


@pytest.mark.parametrize("query", ["groups[]=a&groups[]=b", "groups=a&groups[]=b", "groups%5B%5D=a&groups=b"])
def test_a_lists_name_may_carry_brackets(query: str) -> None:
    assert sorted(read(f"since=0&{query}").groups) == ["a", "b"]


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("", ErrorCode.MISSING_REQUIRED_PARAMETER, "since"),
        ("since=", ErrorCode.INVALID_VALUE, "since"),
        ("since=1.0", ErrorCode.INVALID_VALUE, "since"),
        ("since=%2B1", ErrorCode.INVALID_VALUE, "since"),
        ("since=%D9%A1", ErrorCode.INVALID_VALUE, "since"),
        ("since=101", ErrorCode.INVALID_VALUE, "since"),
        ("since=-1", ErrorCode.INVALID_VALUE, "since"),
        ("since=" + "9" * 5000, ErrorCode.INVALID_VALUE, "since"),
        ("since=0&since=0", ErrorCode.INVALID_VALUE, "since"),
        ("since[]=0", ErrorCode.MISSING_REQUIRED_PARAMETER, "since"),
        ("since=0&every=1", ErrorCode.INVALID_VALUE, "every"),
        ("since=0&order=up", ErrorCode.INVALID_VALUE, "order"),
        ("since=0&groups=a&groups=c", ErrorCode.INVALID_VALUE, "groups[1]"),
        ("since=0&sinse=0", ErrorCode.UNSUPPORTED_PARAMETER, "sinse"),
        ("since=0&name[]=0", ErrorCode.UNSUPPORTED_PARAMETER, "name[]"),
    ],
)
def test_what_is_wrong_is_refused_by_name(query: str, code: ErrorCode, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read(query)
    assert (refused.value.code, refused.value.param) == (code, param)


def test_a_parameter_that_resembles_one_is_told_its_name() -> None:
    with pytest.raises(ApiError, match="Did you mean `since`"):
        read("since=0&sinc=0")


@given(
    st.lists(
        st.tuples(st.sampled_from([*Question.model_fields, "groups[]"]) | st.text(), st.text()), max_size=6
    )
)
def test_no_query_string_does_anything_but_pass_or_be_refused(pairs: list[tuple[str, str]]) -> None:
    query = QueryDict(mutable=True)
    for name, value in pairs:
        query.appendlist(name, value)
    assert {status_of(query.urlencode(), model) for model in (Question, NoQuery)} <= {200, 400}


def status_of(query: str, model: type[QueryModel]) -> int:
    try:
        read_query(RequestFactory().get(f"/?{query}"), model)
    except ApiError as refused:
        return refused.status
    return 200


def test_the_description_is_of_what_is_checked() -> None:
    described: dict[str, Any] = {
        parameter.name: (parameter.schema, parameter.description, parameter.required)
        for parameter in parameters_of(Question)
    }
    assert described["since"] == ({"type": "integer", "minimum": 0, "maximum": 100}, "From when on.", True)
    assert described["until"] == ({"type": "integer", "minimum": 0, "maximum": 100}, "Until when.", False)
    assert described["name"] == ({"type": "string"}, "Whose.", False)
    assert described["order"][0] == {"type": "string", "enum": ["asc", "desc"], "default": "asc"}
    assert described["groups"][0]["type"] == "array"
    assert parameters_of(NoQuery) == ()
