"""What inference keeps of a person is erased with them; what ran is still told, and what others said stays."""

from __future__ import annotations

import pytest
from django.utils import timezone

from accounts import users
from accounts.models import AuditEvent, LaneAssignment, Tenant, User
from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant
from inference.models import ChatMessage, Conversation, Generation, GenerationOutput, GenerationRequest
from inference.models.generation import GenerationState
from tests.factories import ACTOR, ConversationFactory, GenerationFactory, TenantFactory, UserFactory
from tests.fixtures.stored_text import stored_text

pytestmark = pytest.mark.django_db

WORDS = "my mother's maiden name"


def spoken(user: User, tenant: Tenant, state: GenerationState = GenerationState.COMPLETED) -> Generation:
    """A conversation of the user's with a question and an answer, and what is kept of the generation that gave it."""
    ended = None if state is GenerationState.RUNNING else timezone.now()
    made: Generation = GenerationFactory(tenant=tenant, user=user, state=state, ended_at=ended)
    with every_tenant("the test speaks"):
        conversation = ConversationFactory(tenant=tenant, user=user, title=WORDS)
        ChatMessage.objects.create(conversation=conversation, position=0, role="user", content=WORDS)
        ChatMessage.objects.create(
            conversation=conversation, position=1, role="assistant", content=WORDS, generation=made
        )
        GenerationRequest.objects.create(generation=made, task=WORDS.encode())
        GenerationOutput.objects.create(generation=made, events=WORDS.encode())
    return made


@pytest.fixture
def user() -> User:
    made: User = UserFactory(is_active=False)
    return made


def test_conversations_prompts_and_outputs_go_in_every_tenant(user: User) -> None:
    for tenant in (TenantFactory(), TenantFactory()):
        spoken(user, tenant)
    assert WORDS in stored_text()
    users.erase(user=user, actor=ACTOR)
    assert WORDS not in stored_text()
    event = AuditEvent.objects.get(action="user.erase")
    assert event.after is not None
    assert event.after["erased"] == {"audit_values": 0, "conversations": 2, "prompts": 2, "outputs": 2}


def test_that_something_ran_is_still_told(user: User) -> None:
    generation = spoken(user, TenantFactory())
    with every_tenant("the test looks"):
        assignments = LaneAssignment.objects.count()
        users.erase(user=user, actor=ACTOR)
        generation.refresh_from_db()
        assert (generation.user_id, generation.prompt_tokens) == (user.id, 12)
        assert LaneAssignment.objects.count() == assignments


def test_what_others_said_stays(user: User) -> None:
    tenant = TenantFactory()
    spoken(UserFactory(), tenant)
    spoken(user, tenant)
    users.erase(user=user, actor=ACTOR)
    with every_tenant("the test counts"):
        for model in (Conversation, GenerationRequest, GenerationOutput):
            assert model.objects.count() == 1


def test_nothing_is_erased_while_a_generation_of_theirs_would_still_keep_its_words(user: User) -> None:
    tenant = TenantFactory()
    spoken(user, tenant)
    running = spoken(user, tenant, GenerationState.RUNNING)
    with pytest.raises(ChangeRefused, match="1 of their generations") as refused:
        users.erase(user=user, actor=ACTOR)
    assert refused.value.code is ChangeRefusal.STILL_RUNNING
    with every_tenant("the test looks"):
        assert Conversation.objects.count() == 2
        Generation.objects.filter(id=running.id).update(
            state=GenerationState.CANCELLED, ended_at=timezone.now()
        )
    users.erase(user=user, actor=ACTOR)
    assert WORDS not in stored_text()
