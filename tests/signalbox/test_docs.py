"""What the pages for people name is there: commands, settings, routes, error codes, code, series and links."""

from __future__ import annotations

import importlib
import re
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator

import pytest
from django.core.management import get_commands, load_command_class
from django.urls import Resolver404, resolve

from inference.api.errors import ErrorCode
from inference.api.routing import websocket_urlpatterns
from signalbox import http_channel
from signalbox.configuration import ROOT, Configuration
from signalbox.configuration_page import variable

_DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))
_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_TEXT = {page.relative_to(ROOT).as_posix(): page.read_text() for page in _PAGES}
_ALL = "\n".join(_TEXT.values())


def found(pattern: str) -> list[str]:
    return sorted(set(re.findall(pattern, _ALL)))


def links() -> Iterator[tuple[str, str]]:
    for page, text in _TEXT.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            if "://" not in link:
                yield page, link


def anchor_of(title: str) -> str:
    """As GitHub makes them."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def parsers(command: str) -> dict[str, ArgumentParser]:
    """The command's own parser, by "", and those of its verbs."""
    parser = load_command_class(get_commands()[command], command).create_parser("manage.py", command)
    verbs = [action.choices for action in parser._actions if isinstance(action, _SubParsersAction)]
    return {"": parser, **(verbs[0] if verbs else {})}


@pytest.mark.parametrize(
    ("command", "verb", "rest"), found(r"manage\.py ([a-z][a-z_]+)(?: ([a-z][a-z|\\-]*))?([^`\n]*)")
)
def test_every_command_that_is_named_exists(command: str, verb: str, rest: str) -> None:
    assert command in get_commands()
    known = parsers(command)
    if len(known) > 1 and verb:
        assert set(verb.replace("\\", "").split("|")) <= known.keys()
    parser = known.get(verb, known[""])
    assert set(re.findall(r"--[a-z-]+", rest)) <= parser._option_string_actions.keys()


def test_every_setting_that_is_named_exists() -> None:
    known = {variable(name, field) for name, field in Configuration.model_fields.items()}
    assert set(found(r"(SIGNALBOX_[A-Z_]*[A-Z])\b(?!_…)")) - known == set()
    assert all(any(name.startswith(start) for name in known) for start in found(r"(SIGNALBOX_[A-Z_]+)…"))


@pytest.mark.parametrize(
    "path", found(r"`(?:GET|POST) (/[^ `?]+)") + found(r"`(/(?:api|chat|health)/[^ `?]+)`")
)
def test_every_route_that_is_named_exists(path: str) -> None:
    assert resolve(path.replace("{id}", "gen_1"))


def test_the_chat_socket_is_where_it_is_said_to_be() -> None:
    [socket] = found(r"`(/ws/[^`]+)`")
    assert any(pattern.resolve(socket.removeprefix("/")) for pattern in websocket_urlpatterns)
    with pytest.raises(Resolver404):
        resolve(socket)


def test_the_api_page_lists_every_error_code_and_no_other() -> None:
    table = _TEXT["docs/api.md"].partition("## Errors")[2]
    rows = re.findall(r"^\| *\d* *\| (`.*?`(?:, `.*?`)*)[^|]*\|", table, re.MULTILINE)
    listed = {code for row in rows for code in re.findall(r"`(\w+)`", row)}
    assert listed == {code.value for code in (*ErrorCode, *http_channel.HeadRefusal)}


@pytest.mark.parametrize(
    "name", found(r"`((?:accounts|inference|signalbox(?!\.v1`))(?:\.\w+)+)(?:\(.*?\))?`")
)
def test_every_name_of_our_code_exists(name: str) -> None:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[end:]:
            value = getattr(value, attribute)
        return
    pytest.fail(f"there is no {name}")


@pytest.mark.parametrize(
    "path",
    found(
        r"`((?:accounts|inference|platform|scripts|templates|tests|benchmarks|docs|requirements)/[\w/.-]*)`"
    ),
)
def test_every_file_of_ours_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_every_decision_has_a_number_of_its_own_under_which_it_is_named() -> None:
    numbers = [int(path.name[:4]) for path in _DECISIONS]
    assert len(set(numbers)) == len(numbers)
    titles = [int(path.read_text().removeprefix("# ").partition(".")[0]) for path in _DECISIONS]
    assert titles == numbers
    named = {(int(said), int(linked)) for said, linked in found(r"\[ADR (\d+)\]\((?:docs/)?adr/(\d+)-")}
    assert all(said == linked for said, linked in named)


def test_every_benchmark_and_make_target_that_is_named_exists() -> None:
    for module in found(r"-m benchmarks\.(\w+)"):
        assert (ROOT / "benchmarks" / f"{module}.py").is_file()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(found(r"(?:`|^)make ([a-z-]+)")) <= targets


def test_every_series_that_is_named_is_made_somewhere() -> None:
    code = "\n".join(
        path.read_text() for folder in ("platform", "inference") for path in (ROOT / folder).rglob("*.py")
    )
    for series in found(r"`signalbox_(\w+)"):
        # A worker's and a queue's get their prefix where they are shown.
        name = series.removeprefix("worker_").removeprefix("queue_").removesuffix("_total")
        assert re.search(rf'"(signalbox_)?({series}|{name})["_]', code), series


@pytest.mark.parametrize(("page", "link"), list(links()))
def test_every_link_leads_somewhere(page: str, link: str) -> None:
    target, _, anchor = link.partition("#")
    path = (ROOT / page).parent / target if target else ROOT / page
    assert path.exists()
    if anchor:
        assert anchor in {
            anchor_of(title) for title in re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        }
