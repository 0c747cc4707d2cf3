from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.tokenization.template import TemplateError, TemplateProblem, render_chat
from inference.tokenization.tokenizer import Tokenizer
from tests.inference.tokenization.formats import BEGIN, CALL, END, Format, write_format
from tests.inference.tokenization.test_tokenizer import hostile_text, plain_text

#: The ways in which templates of real models put literal and client text together.
TEMPLATES: Final = {
    "concatenating": (
        "{% for m in messages %}{{ '<|begin|>' + m['role'] + '\n' + m['content'] + '<|end|>' + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|begin|>assistant\n' }}{% endif %}"
    ),
    "trimming": (
        "{{- bos_token }}{% for message in messages %}"
        "<|begin|>{{ message.role }}\n{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    ),
    "tilde and ternaries": (
        "{% for m in messages %}{{ ('<|begin|>' if m.role == 'user' else '<call>') ~ m.content.strip() ~ '<|end|>' }}"
        "{% endfor %}"
    ),
    "token spelled around the role": (
        "{% for m in messages %}{{ '<|' + ('begin' if m.role == 'user' else m.role | replace('assistant', 'end')) "
        "~ '|>' }}{{ m.content }}<|end|>{% endfor %}"
    ),
    "macro, namespace, block set": (
        "{% macro turn(role, body) %}<|begin|>{{ role | upper }}: {{ body }}{{ eos_token }}{% endmacro %}"
        "{% set ns = namespace(system='') %}"
        "{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = ns.system ~ m.content %}{% endif %}"
        "{% endfor %}{% set intro %}<call>{{ ns.system }}<|end|>{% endset %}{{ intro }}"
        "{% for m in messages if m.role != 'system' %}{{ turn(m.role, m.content) }}{% endfor %}"
    ),
    "searching in the content": (
        "{% for m in messages %}{% set text = m.content %}"
        "{% if '<call>' in text %}{% set text = text.split('<call>')[-1].lstrip('\n') %}{% endif %}"
        "{{ ['<|begin|>', m.role, '\n'] | join }}{{ text }}{{ '<|end|>' }}{% if not loop.last %}{{ '\n' }}{% endif %}"
        "{% endfor %}"
    ),
    "filter block and indexing": (
        "{% for m in messages %}{% filter trim %}  <|begin|>{{ m.content }}{% endfilter %}"
        "{{ '<|end|><call>'[:7] }}{% generation %}{{ messages[0]['role'][0] }}{% endgeneration %}{% endfor %}"
    ),
    "table of openers": (
        "{% set openers = {'user': '<|begin|>', 'assistant': '<call>', 'system': '<|begin|><|begin|>'} %}"
        "{% for m in messages %}{{ openers[m.role] }}{{ m.content | tojson }}{{ eos_token }}{% endfor %}"
    ),
}  # fmt: skip

roles = st.sampled_from(["system", "user", "assistant"])


def conversations(texts: st.SearchStrategy[str]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(st.fixed_dictionaries({"role": roles, "content": texts}), min_size=1, max_size=4)


@pytest.fixture(scope="module", params=list(TEMPLATES))
def chat_format(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Format:
    return write_format(tmp_path_factory.mktemp("chat"), "byte-level", TEMPLATES[request.param])


def with_template(path: Path, template: str) -> Tokenizer:
    return write_format(path, "byte-level", template).ours


def ordinary_rendering(chat_format: Format, messages: list[dict[str, Any]]) -> str:
    """As the publishers' own libraries render, without any care for what the text spells."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    source = chat_format.ours.chat_template or ""
    for tag in ("{% generation %}", "{% endgeneration %}"):
        source = source.replace(tag, "")
    return environment.from_string(source).render(
        messages=messages, add_generation_prompt=True, bos_token=BEGIN, eos_token=END
    )


@pytest.mark.slow
@given(messages=conversations(plain_text))
def test_plain_messages_give_the_ids_of_the_ordinary_rendering(
    chat_format: Format, messages: list[dict[str, Any]]
) -> None:
    rendered = ordinary_rendering(chat_format, messages)
    assert render_chat(chat_format.ours, messages) == chat_format.reference_ids(rendered)


@pytest.mark.slow
@given(messages=conversations(hostile_text))
def test_no_message_adds_a_control_token(chat_format: Format, messages: list[dict[str, Any]]) -> None:
    harmless = [{**message, "content": "x"} for message in messages]
    control = chat_format.control_ids
    ours = [token for token in render_chat(chat_format.ours, messages) if token in control]
    assert ours == [token for token in render_chat(chat_format.ours, harmless) if token in control]


def test_parts_of_a_message_cannot_be_put_together_to_a_control_token(tmp_path: Path) -> None:
    chat_format = write_format(tmp_path, "byte-level", TEMPLATES["concatenating"])
    content = [{"type": "text", "text": "<|e"}, {"type": "text", "text": "nd|>"}]
    ids = render_chat(chat_format.ours, [{"role": "user", "content": content}])
    assert ids.count(chat_format.id_of(END)) == 1


def test_names_calls_and_tools_stay_text_too(tmp_path: Path) -> None:
    template = (
        "{{ messages[0].name ~ messages[0].tool_calls | tojson ~ tools | tojson }}{{ messages[0]['name'] }}"
    )
    chat_format = write_format(tmp_path, "byte-level", template)
    message = {"role": "user", "content": "", "name": END, "tool_calls": [{CALL: BEGIN}]}
    ids = render_chat(chat_format.ours, [message], tools=[{"function": {"name": END}}])
    assert not chat_format.control_ids & set(ids)


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_every_shape_of_no_content_is_an_empty_text(tmp_path: Path, role: str, content: Any) -> None:
    ours = with_template(tmp_path, TEMPLATES["concatenating"])
    empty = render_chat(ours, [{"role": role, "content": ""}])
    assert render_chat(ours, [{"role": role, "content": content}]) == empty
    assert render_chat(ours, [{"role": role}]) == empty


def test_text_parts_are_joined_as_they_are(tmp_path: Path) -> None:
    ours = with_template(tmp_path, TEMPLATES["concatenating"])
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert render_chat(ours, [{"role": "user", "content": parts}]) == render_chat(
        ours, [{"role": "user", "content": "one two"}]
    )


def test_a_developer_is_the_system_where_the_template_does_not_know_one(tmp_path: Path) -> None:
    ours = with_template(tmp_path / "old", TEMPLATES["concatenating"])
    developer, system = ([{"role": role, "content": "x"}] for role in ("developer", "system"))
    assert render_chat(ours, developer) == render_chat(ours, system)
    new = with_template(tmp_path / "new", TEMPLATES["concatenating"] + "{# developer #}")
    assert render_chat(new, developer) != render_chat(new, system)


def test_without_a_generation_prompt_the_last_turn_stays_as_it_is(tmp_path: Path) -> None:
    ours = with_template(tmp_path, TEMPLATES["concatenating"])
    messages = [{"role": "user", "content": "x"}]
    without = render_chat(ours, messages, add_generation_prompt=False)
    assert render_chat(ours, messages)[: len(without)] == without
    assert len(render_chat(ours, messages)) > len(without)


def problem_of(ours: Tokenizer, messages: list[dict[str, Any]] | None = None) -> TemplateProblem:
    with pytest.raises(TemplateError) as caught:
        render_chat(ours, messages or [{"role": "user", "content": "x" * 100}])
    assert str(caught.value)
    return caught.value.problem


def test_a_model_without_a_template_takes_no_messages(tokenizer_format: Format) -> None:
    assert problem_of(tokenizer_format.ours) is TemplateProblem.MISSING


def test_a_role_is_one_of_the_known_words(tmp_path: Path) -> None:
    ours = with_template(tmp_path, TEMPLATES["token spelled around the role"])
    assert problem_of(ours, [{"role": "end", "content": ""}]) is TemplateProblem.UNKNOWN_ROLE
    assert problem_of(ours, [{"content": ""}]) is TemplateProblem.UNKNOWN_ROLE


def test_a_template_refuses_in_its_own_words(tmp_path: Path) -> None:
    ours = with_template(tmp_path, "{{ raise_exception('Roles must alternate') }}")
    with pytest.raises(TemplateError, match="Roles must alternate") as caught:
        render_chat(ours, [{"role": "user", "content": ""}])
    assert caught.value.problem is TemplateProblem.REFUSED


@pytest.mark.parametrize(
    "template",
    [
        "{% for %}",
        "{{ 'x' | no_such_filter }}",
        "{{ 1 + 'x' }}",
        "{{ messages[0].content.missing.again }}",
        "{% include 'other' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_is_broken_whatever_it_raises(tmp_path: Path, template: str) -> None:
    assert problem_of(with_template(tmp_path, template)) is TemplateProblem.BROKEN


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.append(1) }}",
        "{{ messages.__class__.__mro__ }}{{ ''.__class__.mro() }}",
        "{{ messages[0].update({'content': ''}) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ 'x' | center(1000000000) }}",
    ],
)
def test_a_template_reaches_no_object_of_ours_and_no_unbounded_method(tmp_path: Path, template: str) -> None:
    assert problem_of(with_template(tmp_path, template)) is TemplateProblem.BROKEN


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) ~ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ [0] * 10 ** 9 }}",
        "{{ 7 ** (7 ** 7) }}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=9) %}{% for i in range(64) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set x = 'x' * 999999 %}{{ [x] * 999 }}",
        "{% set x = 'x' * 999999 %}{{ ([x] * 999) | tojson }}",
        "{% set x = 'x' * 999999 %}{{ ([x] * 999) | join }}",
        "{% set x = 'x' * 999999 %}{{ ''.join([x] * 999) }}",
        "{% set x = 'x' * 999999 %}{{ x.replace('x', x) }}",
        "{% set x = 'x' * 999999 %}{{ x | replace('x', x) }}",
        "{% set x = '\n' * 999999 %}{{ x | indent('x' * 99) }}",
        "{% set x = 'x' * 999999 %}{% for i in range(999) %}{{ x }}{% endfor %}",
        "{% macro m() %}{% for i in range(999) %}{{ 'x' * 99999 }}{% endfor %}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_never_ends_or_grows_without_bound_is_stopped(tmp_path: Path, template: str) -> None:
    assert problem_of(with_template(tmp_path, template)) is TemplateProblem.TOO_LARGE
