"""How long a sequence the worker has memory for, as it is told and as it is kept."""

from __future__ import annotations

import pytest

from inference.models import LanguageModel
from inference.worker.holdings import Holdings
from inference.worker.kv_memory import KvBudget, KvMemory
from tests.factories import LanguageModelFactory


def memory_of(total: int, bytes_per_token: int) -> KvMemory:
    budget = KvBudget(total=total, watermark=0, prefix_cache=0)
    return KvMemory(Holdings(1, 1.0), budget, bytes_per_token=bytes_per_token, step=256)


@pytest.mark.parametrize("bytes_per_token", [0, 1])
def test_no_memory_is_so_large_that_its_tokens_cannot_be_kept(bytes_per_token: int) -> None:
    """PostgreSQL refuses more, and the worker would not start."""
    longest = memory_of(2**44, bytes_per_token).longest_sequence()
    assert longest == 2**31 - 1


@pytest.mark.django_db
def test_the_longest_that_a_worker_may_tell_is_kept() -> None:
    model = LanguageModelFactory(kv_capacity_tokens=memory_of(2**44, 1).longest_sequence())
    assert LanguageModel.objects.get().kv_capacity_tokens == model.kv_capacity_tokens


def test_it_is_a_whole_number_of_the_caches_steps() -> None:
    assert memory_of(1000, 1).longest_sequence() == 768
    assert memory_of(200, 1).longest_sequence() == 0
