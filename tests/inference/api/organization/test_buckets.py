from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.api.organization.buckets import LAST, WIDTHS, WrongPage, slice_of

DAY = 86_400


@given(
    start=st.integers(0, LAST - 1),
    length=st.integers(1, 10_000_000),
    width=st.sampled_from(sorted(WIDTHS.values())),
    limit=st.integers(1, 50),
    pages=st.integers(1, 5),
)
def test_pages_follow_each_other_without_gap_or_overlap(
    start: int, length: int, width: int, limit: int, pages: int
) -> None:
    end = min(start + length, LAST)
    at = start
    page = None
    for _ in range(pages):
        part = slice_of(start, end, width=width, limit=limit, page=page)
        bounds = list(part.bounds())
        assert len(bounds) <= limit
        for begins, ends in bounds:
            assert begins == at
            assert begins == start or begins % width == 0
            assert ends == end or ends % width == 0
            assert 0 < ends - begins <= width
            at = ends
        page = part.next_page
        assert (page is None) == (at == end)
        if page is None:
            break
        assert len(bounds) == limit, "a page that is not the last one is full"


def test_the_first_and_the_last_bucket_are_cut_to_what_was_asked_for() -> None:
    part = slice_of(DAY + 100, 3 * DAY + 5, width=DAY, limit=7, page=None)
    assert list(part.bounds()) == [(DAY + 100, 2 * DAY), (2 * DAY, 3 * DAY), (3 * DAY, 3 * DAY + 5)]
    assert (part.since.timestamp(), part.until.timestamp()) == (DAY + 100, 3 * DAY + 5)


def token(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    "page",
    [
        "",
        "x",
        "!!!",
        "é",
        token("from:"),
        token("from:x"),
        token(f"from:{DAY}"),  # where the first page begins
        token(f"from:{2 * DAY + 1}"),  # in the middle of a bucket
        token(f"from:{9 * DAY}"),  # the end
        token(f"from:{99 * DAY}"),
        token("from:" + "9" * 40),
    ],
)
def test_what_no_answer_named_is_no_page(page: str) -> None:
    assert slice_of(DAY, 9 * DAY, width=DAY, limit=7, page=token(f"from:{2 * DAY}")).start == 2 * DAY
    with pytest.raises(WrongPage):
        slice_of(DAY, 9 * DAY, width=DAY, limit=7, page=page)
