from __future__ import annotations

import pytest

from signalbox.configuration import Configuration, configuration
from signalbox.configuration_page import page


def test_a_wrong_value_names_its_variable_and_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "SIGNALBOX_PORT": ("abc", "a whole number from 1 to 65535"),
        "SIGNALBOX_LEASE_SECONDS": ("0", "a number more than 0"),
        "SIGNALBOX_HTTPS": ("perhaps", "true or false"),
        "SIGNALBOX_BLAS": ("fast", "auto or stock"),
        "SIGNALBOX_QUEUE_LIMIT": ("0", "a whole number at least 1"),
    }
    for variable, (value, _) in wrong.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as end:
        configuration.__wrapped__()
    assert set(str(end.value).splitlines()) == {
        f"The environment variable {variable} cannot be {value!r}: it must be {wanted}."
        for variable, (value, wanted) in wrong.items()
    }


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNALBOX_ALLOWED_HOSTS", "a.example.com, b.example.com,")
    assert Configuration().allowed_hosts == ["a.example.com", "b.example.com"]


def test_every_setting_is_described_on_the_page() -> None:
    text = page()
    assert all(field.description for field in Configuration.model_fields.values())
    assert text.count("\n| `") == len(Configuration.model_fields)
    assert "| `VALKEY_URL` | none |" in text
