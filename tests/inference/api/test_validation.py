"""Bodies: what is accepted, what is refused, and that the refusal names field, problem and allowed range.

Without the routes: that these refuse what is refused here is in test_errors.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from inference.api.bodies import validate
from inference.api.chat_completions import ChatCompletionRequest
from inference.api.chat_messages import as_template_message
from inference.api.completions import CompletionRequest
from inference.api.errors import ApiError, ErrorCode
from inference.messages import Sampling
from tests.inference.api.bodies import chat, text

MODELS: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (ChatCompletionRequest, chat()),
    (CompletionRequest, text()),
]


def checked(model: type[Any], body: dict[str, Any]) -> Any:
    return validate(model, json.dumps(body).encode())


def refusal(model: type[Any], body: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        checked(model, body)
    return caught.value


NUMBERS: list[tuple[str, Any, str]] = [
    ("temperature", -0.1, "between 0 and 2"),
    ("temperature", 2.1, "between 0 and 2"),
    ("top_p", 1.01, "between 0 and 1"),
    ("top_p", -1, "between 0 and 1"),
    ("top_k", -2, "between -1 and"),
    ("min_p", 1.5, "between 0 and 1"),
    ("presence_penalty", 2.5, "between -2 and 2"),
    ("frequency_penalty", -2.5, "between -2 and 2"),
    ("repetition_penalty", 0, "above 0 and at most 2"),
    ("max_tokens", 0, "between 1 and"),
    ("max_tokens", -5, "between 1 and"),
    ("max_tokens", 2**31, "between 1 and"),
    ("seed", 2**63, "between -9223372036854775808 and 9223372036854775807"),
]


@pytest.mark.parametrize(("model", "body"), MODELS)
@pytest.mark.parametrize(("name", "value", "allowed"), NUMBERS)
def test_a_number_out_of_its_range_is_refused_with_the_range(
    model: type[BaseModel], body: dict[str, Any], name: str, value: Any, allowed: str
) -> None:
    error = refusal(model, {**body, name: value})
    assert (error.code, error.param) == (ErrorCode.INVALID_VALUE, name)
    assert f"`{name}`" in error.message
    assert allowed in error.message
    assert str(value) in error.message


@pytest.mark.parametrize(("model", "body"), MODELS)
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", "1", "`temperature` must be a number, not a string."),
        ("temperature", True, "`temperature` must be a number, not true or false."),
        ("max_tokens", 1.5, "`max_tokens` must be a whole number, not a number."),
        ("max_tokens", "16", "`max_tokens` must be a whole number, not a string."),
        ("seed", [1], "`seed` must be a whole number, not a list."),
        ("stream", 1, "`stream` must be true or false, not a whole number."),
        ("stream", "true", "`stream` must be true or false, not a string."),
        ("model", 5, "`model` must be a string, not a whole number."),
        ("stream_options", [], "`stream_options` must be an object, not a list."),
        ("logit_bias", [], "`logit_bias` must be an object, not a list."),
        ("user", {}, "`user` must be a string, not an object."),
        ("metadata", "x", "`metadata` must be an object, not a string."),
    ],
)
def test_a_wrong_type_is_refused_with_the_right_one(
    model: type[BaseModel], body: dict[str, Any], name: str, value: Any, message: str
) -> None:
    error = refusal(model, {**body, name: value})
    assert (error.code, error.param) == (ErrorCode.INVALID_TYPE, name)
    assert error.message == message


@pytest.mark.parametrize(("model", "body"), MODELS)
def test_not_a_number_is_refused(model: type[BaseModel], body: dict[str, Any]) -> None:
    for value in (float("nan"), float("inf"), float("-inf")):
        assert refusal(model, {**body, "temperature": value}).param == "temperature"


@pytest.mark.parametrize(("model", "body"), MODELS)
@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 2), ("n", 0), ("n", 1.0), ("n", True), ("n", "1"), ("background", True), ("store", True)],
)
def test_what_is_not_offered_yet_is_refused_by_name(
    model: type[BaseModel], body: dict[str, Any], name: str, value: Any
) -> None:
    error = refusal(model, {**body, name: value})
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_PARAMETER, name)
    assert f"`{name}`" in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {}}),
        ("logprobs", True),
        ("top_logprobs", 3),
        ("modalities", ["text", "audio"]),
        ("audio", {}),
        ("prediction", {"type": "content", "content": ""}),
        ("reasoning_effort", "high"),
        ("web_search_options", {}),
    ],
)
def test_what_chats_do_not_offer_yet_is_refused_by_name(name: str, value: Any) -> None:
    error = refusal(ChatCompletionRequest, chat(**{name: value}))
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_of", 2), ("echo", True), ("logprobs", 3), ("suffix", "end"), ("prompt", ["a", "b"])],
)
def test_what_completions_do_not_offer_yet_is_refused_by_name(name: str, value: Any) -> None:
    error = refusal(CompletionRequest, text(**{name: value}))
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_PARAMETER, name)


@pytest.mark.parametrize(("model", "body"), MODELS)
def test_an_unknown_field_is_refused_by_name_and_a_slip_of_the_pen_is_guessed(
    model: type[BaseModel], body: dict[str, Any]
) -> None:
    error = refusal(model, {**body, "temprature": 1})
    assert (error.code, error.param) == (ErrorCode.UNSUPPORTED_PARAMETER, "temprature")
    assert "Did you mean `temperature`?" in error.message
    assert refusal(model, {**body, "quux": 1}).param == "quux"
    nested = refusal(model, {**body, "stream": True, "stream_options": {"quux": 1}})
    assert (nested.code, nested.param) == (ErrorCode.UNSUPPORTED_PARAMETER, "stream_options.quux")


@pytest.mark.parametrize(("model", "body"), MODELS)
def test_what_is_harmless_is_accepted(model: type[BaseModel], body: dict[str, Any]) -> None:
    checked(
        model,
        {
            **body,
            "user": "somebody",
            "metadata": {"anything": "at all", "nested": {"too": 1}},
            "store": False,
            "background": False,
            "n": 1,
            "safety_identifier": "x",
            "prompt_cache_key": "x",
            "prompt_cache_retention": "24h",
            "cache_control": {"type": "ephemeral"},
        },
    )


def test_values_that_ask_for_nothing_are_accepted() -> None:
    checked(
        ChatCompletionRequest,
        chat(
            tools=[],
            tool_choice="auto",
            parallel_tool_calls=True,
            functions=[],
            function_call="none",
            response_format={"type": "text"},
            logprobs=False,
            modalities=["text"],
        ),
    )
    checked(CompletionRequest, text(best_of=1, echo=False, suffix=""))


@pytest.mark.parametrize(("model", "body"), MODELS)
def test_a_null_field_is_an_absent_one_known_or_not(model: type[BaseModel], body: dict[str, Any]) -> None:
    absent = checked(model, {**body, "seed": 1})
    nulls = {name: None for name in model.model_fields if name not in ("model", "messages", "prompt", "seed")}
    assert checked(model, {**body, **nulls, "seed": 1, "quux": None}) == absent


@pytest.mark.parametrize(("model", "body"), MODELS)
@pytest.mark.parametrize(
    "fields",
    [
        {"metadata": {"x": [[]] * 300_000}},
        {str(number): 1 for number in range(1000)},
        {"stop": [1] * 100_000},
        {"logit_bias": {str(number): 1 for number in range(5000)}},
        {"messages": [{"role": "user", "content": ""}] * 20_000, "prompt": ["x"] * 5000},
    ],
)
def test_a_body_that_would_keep_the_server_busy_is_refused_at_its_first_mistake(
    model: type[BaseModel], body: dict[str, Any], fields: dict[str, Any]
) -> None:
    known = {name: value for name, value in fields.items() if name in model.model_fields or name.isdigit()}
    assert refusal(model, {**body, **known}).status == 400


@pytest.mark.parametrize(("model", "body"), MODELS)
def test_stops_are_a_text_or_up_to_four(model: type[Any], body: dict[str, Any]) -> None:
    assert checked(model, body).stop == []
    assert checked(model, {**body, "stop": "x"}).stop == ["x"]
    assert checked(model, {**body, "stop": []}).stop == []
    assert checked(model, {**body, "stop": ["a", "b", "c", "d"]}).stop == ["a", "b", "c", "d"]
    too_many = refusal(model, {**body, "stop": list("abcde")})
    assert (too_many.param, too_many.message) == ("stop", "`stop` must have at most 4 entries.")
    empty = refusal(model, {**body, "stop": ["a", ""]})
    assert (empty.param, empty.message) == ("stop[1]", "`stop[1]` must not be empty.")
    assert refusal(model, {**body, "stop": ""}).param == "stop[0]"
    assert refusal(model, {**body, "stop": [1]}).param == "stop[0]"
    assert refusal(model, {**body, "stop": "x" * 501}).param == "stop[0]"


@pytest.mark.parametrize(("model", "body"), MODELS)
@pytest.mark.parametrize(
    "bias", [{"x": 1}, {"-1": 1}, {"1.5": 1}, {"": 1}, {"٣": 1}, {"1": 101}, {"1": "1"}, {"1": None}]
)
def test_a_bias_that_names_no_token_or_goes_too_far_is_refused(
    model: type[BaseModel], body: dict[str, Any], bias: dict[str, Any]
) -> None:
    error = refusal(model, {**body, "logit_bias": bias})
    assert (error.param or "").startswith("logit_bias")


@pytest.mark.parametrize(("model", "body"), MODELS)
def test_stream_options_need_a_stream(model: type[BaseModel], body: dict[str, Any]) -> None:
    error = refusal(model, {**body, "stream_options": {"include_usage": True}})
    assert (error.code, error.param) == (ErrorCode.INVALID_VALUE, "stream_options")


@pytest.mark.parametrize(("model", "body"), MODELS)
def test_a_lane_is_asked_for_in_one_way(model: type[BaseModel], body: dict[str, Any]) -> None:
    assert refusal(model, {**body, "lane": "high", "service_tier": "priority"}).param == "lane"


@pytest.mark.parametrize(
    ("fields", "answer_tokens"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 8}, 8),
        ({"max_tokens": 9, "max_completion_tokens": 9}, 9),
        ({"max_tokens": None, "max_completion_tokens": 8}, 8),
    ],
)
def test_c9_either_name_sets_the_answers_length(fields: dict[str, Any], answer_tokens: int | None) -> None:
    assert checked(ChatCompletionRequest, chat(**fields)).answer_tokens == answer_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"max_completion_tokens": 2**31}, "max_completion_tokens"),
        ({"max_tokens": 0, "max_completion_tokens": 5}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
    ],
)
def test_c9_a_length_that_cannot_be_meant_is_refused(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, chat(**fields))
    assert (error.code, error.param) == (ErrorCode.INVALID_VALUE, param)


def test_c9_completions_know_the_older_name_only() -> None:
    assert refusal(CompletionRequest, text(max_completion_tokens=5)).param == "max_completion_tokens"


CALLS = [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
PARTS = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "system", "content": "Hello"}, "Hello"),
        ({"role": "developer", "content": PARTS}, "Hello"),
        ({"role": "user", "content": ""}, ""),
        ({"role": "user", "content": PARTS, "name": "Ann"}, "Hello"),
        ({"role": "user", "content": [{**PARTS[0], "cache_control": {"type": "ephemeral"}}]}, "Hel"),
        ({"role": "assistant", "content": "Hello"}, "Hello"),
        ({"role": "assistant", "content": ""}, ""),
        ({"role": "assistant", "content": [*PARTS, {"type": "refusal", "refusal": "!"}]}, "Hello!"),
        ({"role": "assistant", "content": None, "refusal": "No."}, "No."),
        ({"role": "assistant", "content": None, "tool_calls": CALLS}, ""),
        ({"role": "assistant", "tool_calls": CALLS}, ""),
        ({"role": "assistant", "content": "", "tool_calls": CALLS}, ""),
        ({"role": "assistant", "content": None, "function_call": CALLS[0]["function"]}, ""),
        # As the official client gives an answer back.
        (
            {
                "role": "assistant",
                "content": "Hello",
                "refusal": None,
                "annotations": [],
                "audio": None,
                "function_call": None,
                "tool_calls": None,
            },
            "Hello",
        ),
        ({"role": "tool", "content": "42", "tool_call_id": "call_1"}, "42"),
        ({"role": "tool", "content": PARTS, "tool_call_id": "call_1"}, "Hello"),
        ({"role": "function", "name": "f", "content": "42"}, "42"),
        ({"role": "function", "name": "f", "content": None}, ""),
    ],
)
def test_c13_what_the_api_allows_is_accepted_for_every_role(message: dict[str, Any], content: str) -> None:
    body = checked(ChatCompletionRequest, chat(messages=[message]))
    shaped = as_template_message(body.messages[0])
    assert (shaped["role"], shaped["content"]) == (message["role"], content)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "system", "content": None}, "messages[0].content"),
        ({"role": "developer"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": None}]}, "messages[0].content[0].text"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "messages[0].content[0].type",
        ),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}, "messages[0].content[0].type"),
        ({"role": "assistant"}, "messages[0].content"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages[0].tool_calls"),
        ({"role": "assistant", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "1"}]}, "messages[0].tool_calls[0].function"),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "custom", "function": CALLS[0]["function"]}],
            },
            "messages[0].tool_calls[0].type",
        ),
        ({"role": "tool", "content": "42"}, "messages[0].tool_call_id"),
        ({"role": "tool", "content": None, "tool_call_id": "1"}, "messages[0].content"),
        ({"role": "function", "content": "42"}, "messages[0].name"),
        ({"role": "robot", "content": "x"}, "messages[0]"),
        ({"role": ["user"], "content": "x"}, "messages[0]"),
        ({"content": "x"}, "messages[0]"),
        ("Hello", "messages[0]"),
        ({"role": "user", "content": "x", "quux": 1}, "messages[0].quux"),
    ],
)
def test_c13_what_the_api_does_not_allow_is_refused_by_name(message: Any, param: str) -> None:
    error = refusal(ChatCompletionRequest, chat(messages=[message]))
    assert error.param == param
    assert error.status == 400
    assert f"`{param}`" in error.message


def test_v6_empty_messages_are_refused() -> None:
    error = refusal(ChatCompletionRequest, chat(messages=[]))
    assert (error.param, error.message) == ("messages", "`messages` must not be empty.")


def test_calls_reach_the_template_with_their_arguments_as_an_object() -> None:
    broken = [{"id": "call_2", "function": {"name": "g", "arguments": "{not json"}}]
    body = checked(
        ChatCompletionRequest,
        chat(
            messages=[{"role": "assistant", "tool_calls": CALLS}, {"role": "assistant", "tool_calls": broken}]
        ),
    )
    first, second = (as_template_message(message)["tool_calls"][0]["function"] for message in body.messages)
    assert first == {"name": "f", "arguments": {"a": 1}}
    assert second == {"name": "g", "arguments": "{not json"}


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ({}, "prompt"),
        (5, "prompt"),
        ([[]], "prompt[0]"),
        ([1, "a"], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        ([True], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([[1], [2]], "prompt"),
    ],
)
def test_a_prompt_of_another_form_is_refused_by_name(prompt: Any, param: str) -> None:
    assert refusal(CompletionRequest, text(prompt)).param == param


def test_sampling_is_what_was_asked_for() -> None:
    body = checked(
        ChatCompletionRequest,
        chat(
            seed=-1,
            temperature=0,
            top_p=0,
            top_k=-1,
            min_p=0.1,
            presence_penalty=1,
            frequency_penalty=-1,
            repetition_penalty=1.1,
            logit_bias={"7": -100},
        ),
    )
    sampling = body.sampling()
    assert sampling == Sampling(
        seed=2**63 - 1,
        temperature=0,
        top_p=sampling.top_p,
        top_k=0,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={7: -100},
    )
    assert 0 < sampling.top_p < 1e-6


def test_without_a_seed_every_request_draws_its_own() -> None:
    body = checked(ChatCompletionRequest, chat())
    assert body.sampling().seed != body.sampling().seed


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("n", 2, "`n` is not supported by this server: only `1` is accepted, or leaving it out."),
        ("tools", [{}], "`tools` is not supported by this server: only `[]` is accepted, or leaving it out."),
        (
            "tool_choice",
            "required",
            '`tool_choice` is not supported by this server: only `"none"` or `"auto"` is accepted, or leaving it out.',
        ),
        ("audio", {}, "`audio` is not supported by this server: leave it out."),
    ],
)
def test_what_is_not_offered_is_refused_with_what_is_taken(name: str, value: Any, said: str) -> None:
    assert refusal(ChatCompletionRequest, {**chat(), name: value}).message == said


def test_a_picture_is_refused_as_a_picture() -> None:
    part = {"type": "image_url", "image_url": {"url": "x"}}
    error = refusal(ChatCompletionRequest, {**chat(), "messages": [{"role": "user", "content": [part]}]})
    assert error.param == "messages[0].content[0].type"
    assert "images, audio and files are not supported" in error.message
