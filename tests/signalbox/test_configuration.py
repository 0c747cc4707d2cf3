from __future__ import annotations

import pytest

from signalbox.configuration import Configuration, configuration
from signalbox.configuration_page import page


def test_a_wrong_value_names_its_variable_and_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNALBOX_PORT", "99999")
    monkeypatch.setenv("SIGNALBOX_BLAS", "fast")
    with pytest.raises(SystemExit) as end:
        configuration.__wrapped__()
    lines = str(end.value).splitlines()
    assert lines[0].startswith("The environment variable SIGNALBOX_PORT cannot be '99999': ")
    assert lines[1].startswith("The environment variable SIGNALBOX_BLAS cannot be 'fast': ")


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNALBOX_ALLOWED_HOSTS", "a.example.com, b.example.com,")
    assert Configuration().allowed_hosts == ["a.example.com", "b.example.com"]


def test_every_setting_is_described_on_the_page() -> None:
    text = page()
    assert all(field.description for field in Configuration.model_fields.values())
    assert text.count("\n| `") == len(Configuration.model_fields)
    assert "| `VALKEY_URL` | none |" in text
