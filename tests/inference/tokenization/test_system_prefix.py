from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.tokenization import tokenizer as tokenization
from inference.tokenization.system_prefix import system_prefix
from inference.tokenization.template import TemplateError, render_chat
from inference.tokenization.tokenizer import Tokenizer
from tests.inference.engine.tiny_model import make_tiny_model

TURNS = st.lists(st.text(max_size=20), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return tokenization.load(make_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


@given(text=st.text(min_size=1, max_size=60).filter(str.strip), turns=TURNS)
def test_every_chat_with_the_system_prompt_begins_with_its_prefix(
    tiny: Tokenizer, text: str, turns: list[str]
) -> None:
    prefix = system_prefix(tiny, text)
    messages = [{"role": "system", "content": text}] + [
        {"role": "assistant" if turn % 2 else "user", "content": words} for turn, words in enumerate(turns)
    ]
    chat = render_chat(tiny, messages)
    assert chat[: len(prefix)] == prefix
    assert prefix == render_chat(tiny, messages[:1], add_generation_prompt=False)


def test_another_system_prompt_does_not_begin_with_it(tiny: Tokenizer) -> None:
    prefix = system_prefix(tiny, "Answer")
    for text in ("Answer ", "Answer\n", " Answer", "Answer it", "answer"):
        other = render_chat(tiny, [{"role": "system", "content": text}, {"role": "user", "content": "A"}])
        assert other[: len(prefix)] != prefix


def test_without_a_template_there_is_none(tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "chat_template", None)
    with pytest.raises(TemplateError, match="no chat template"):
        system_prefix(tiny, "Answer.")
