from __future__ import annotations

import itertools
import uuid
from datetime import timedelta

import pytest
import redis
from django.db import transaction
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from accounts.models import AuditEvent, Lane, Tenant, User
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from inference import conversations, intake, settlement
from inference.conversations import ConversationRefusal, ConversationRefused, Message, PlannedTurn
from inference.conversations.speaking import readable
from inference.conversations.titles import TITLE_LENGTH, title_of
from inference.dispatch import publishing
from inference.intake import Accepted
from inference.models import ChatMessage, Conversation, LanguageModel
from tests.factories import (
    ACTOR,
    EntitlementFactory,
    LanguageModelFactory,
    MembershipFactory,
    TenantFactory,
    UserFactory,
)
from tests.inference.doors import WORKER, claimed, end_of, publish_tokens, submission

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def model() -> LanguageModel:
    made: LanguageModel = LanguageModelFactory()
    return made


@pytest.fixture
def tenant() -> Tenant:
    made: Tenant = TenantFactory()
    EntitlementFactory(tenant=made)
    return made


@pytest.fixture
def user(tenant: Tenant) -> User:
    made: User = UserFactory()
    MembershipFactory(tenant=tenant, user=made)
    return made


@pytest.fixture
def member(tenant: Tenant, user: User) -> Principal:
    return member_of(tenant, user)


def member_of(tenant: Tenant, user: User) -> Principal:
    return Principal(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        scopes=frozenset({"inference", "read"}),
        name=user.username,
        user_id=user.id,
    )


def started(member: Principal, model: LanguageModel) -> uuid.UUID:
    return conversations.start(member, model=model, lane=None).id


def planned(member: Principal, conversation: uuid.UUID, *says: str, lane: str | None = None) -> PlannedTurn:
    return conversations.plan_turn(
        member, conversation, [Message("user", text) for text in says], requested_lane=lane
    )


def said(member: Principal, model: LanguageModel, turn: PlannedTurn) -> Accepted:
    """Have the turn's generation accepted, and the turn written with it."""
    return intake.accept(
        member,
        submission(model, keep_output=True, unattended=True),
        within=lambda generation: conversations.append_turn(turn, generation),
    )


def answered(valkey: redis.Redis, model: LanguageModel, *texts: str) -> None:
    """Run the next generation to its end."""
    got = claimed(valkey, model)
    publish_tokens(valkey, got, *texts)
    end = end_of(got, len(texts) + 1, completion_tokens=len(texts))
    publishing.publish(valkey, WORKER, [(got.task.generation, got.epoch, end)])
    assert settlement.settle(uuid.UUID(hex=got.task.generation), got.epoch, end)


def contents(member: Principal, conversation: uuid.UUID) -> list[tuple[str, str]]:
    return [(turn.role, turn.content) for turn in conversations.turns(member, conversation)[1]]


def refusal(error: pytest.ExceptionInfo[ConversationRefused]) -> ConversationRefusal:
    return error.value.code


def test_a_turn_is_its_question_and_a_place_for_the_answer_that_settlement_fills(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    said(member, model, planned(member, conversation, "What is a lane?"))
    assert contents(member, conversation) == [("user", "What is a lane?"), ("assistant", "")]
    assert conversations.turns(member, conversation)[1][1].answer is not None
    answered(valkey, model, "A priority ", "class.")
    assert contents(member, conversation)[1] == ("assistant", "A priority class.")


def test_the_model_reads_all_that_was_said_before(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    said(member, model, planned(member, conversation, "One?"))
    answered(valkey, model, "1")
    assert planned(member, conversation, "Two?").prompt == (
        Message("user", "One?"),
        Message("assistant", "1"),
        Message("user", "Two?"),
    )


def test_a_refused_generation_leaves_nothing_in_the_conversation(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    turn = planned(member, conversation, "Hello")
    with pytest.raises(intake.Refused):
        intake.accept(
            member,
            submission(model, requested_lane="no-such-lane"),
            within=lambda generation: conversations.append_turn(turn, generation),
        )
    assert contents(member, conversation) == []


def test_nothing_is_said_while_an_answer_is_being_written(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    said(member, model, planned(member, conversation, "One?"))
    with pytest.raises(ConversationRefused) as error:
        planned(member, conversation, "Two?")
    assert refusal(error) is ConversationRefusal.ANSWER_IN_PROGRESS


def test_of_two_windows_that_speak_at_once_one_is_refused_and_its_generation_does_not_exist(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    first, second = planned(member, conversation, "One?"), planned(member, conversation, "Two?")
    said(member, model, first)
    with pytest.raises(ConversationRefused) as error:
        said(member, model, second)
    assert refusal(error) is ConversationRefusal.CHANGED
    assert contents(member, conversation) == [("user", "One?"), ("assistant", "")]
    with every_tenant("the test counts"):
        assert Conversation.objects.get(id=conversation).user.generations.count() == 1


def test_answering_anew_replaces_the_last_answer_only(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    said(member, model, planned(member, conversation, "One?"))
    answered(valkey, model, "uno")
    anew = planned(member, conversation)
    assert anew.prompt == (Message("user", "One?"),)
    said(member, model, anew)
    answered(valkey, model, "1")
    assert contents(member, conversation) == [("user", "One?"), ("assistant", "1")]


def test_there_is_nothing_to_answer_anew_in_an_empty_conversation(
    member: Principal, model: LanguageModel
) -> None:
    with pytest.raises(ConversationRefused) as error:
        planned(member, started(member, model))
    assert refusal(error) is ConversationRefusal.NOTHING_TO_ANSWER


def test_roles_that_are_not_stored_are_refused_by_name(member: Principal, model: LanguageModel) -> None:
    with pytest.raises(ConversationRefused, match="not tool") as error:
        conversations.plan_turn(member, started(member, model), [Message("tool", "42")], requested_lane=None)
    assert refusal(error) is ConversationRefusal.ROLE_NOT_STORED


@pytest.mark.parametrize("asked", ["low", "flex"])
def test_a_conversation_remembers_model_and_lane_of_its_last_turn(
    valkey: redis.Redis, member: Principal, model: LanguageModel, tenant: Tenant, asked: str
) -> None:
    EntitlementFactory(tenant=tenant, lane=Lane.objects.get(name="low"))
    conversation = started(member, LanguageModelFactory())
    said(member, model, planned(member, conversation, "Hello", lane=asked))
    summary, _ = conversations.turns(member, conversation)
    assert (summary.model, summary.lane) == (model.name, "low")


def test_a_conversation_is_seen_by_its_member_alone(
    valkey: redis.Redis, member: Principal, model: LanguageModel, tenant: Tenant, user: User
) -> None:
    conversation = started(member, model)
    said(member, model, planned(member, conversation, "A secret"))
    colleague = member_of(tenant, UserFactory())
    elsewhere = member_of(TenantFactory(), user)
    for other in (colleague, elsewhere):
        assert conversations.listing(other, limit=10) == ([], False)
        for verb in (
            lambda p: conversations.turns(p, conversation),
            lambda p: conversations.rename(p, conversation, "Mine"),
            lambda p: conversations.delete(p, conversation, actor=ACTOR),
            lambda p: planned(p, conversation, "Hello"),
        ):
            with pytest.raises(ConversationRefused) as error:
                verb(other)
            assert refusal(error) is ConversationRefusal.NOT_FOUND
    assert len(contents(member, conversation)) == 2


def test_the_list_has_what_was_used_last_first_in_pages_and_no_empty_conversations(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    made = []
    for number in range(3):
        conversation = started(member, model)
        said(member, model, planned(member, conversation, f"Number {number}"))
        answered(valkey, model, "ok")
        made.append(conversation)
    started(member, model)
    page, more = conversations.listing(member, limit=2)
    assert ([summary.id for summary in page], more) == ([made[2], made[1]], True)
    rest, more = conversations.listing(member, limit=2, after=made[1])
    assert ([summary.id for summary in rest], more) == ([made[0]], False)


def test_an_empty_conversation_is_forgotten_when_another_is_started_later(
    member: Principal, model: LanguageModel
) -> None:
    empty = started(member, model)
    with every_tenant("the test turns the clock back"):
        Conversation.objects.filter(id=empty).update(created_at=timezone.now() - timedelta(hours=2))
    started(member, model)
    with pytest.raises(ConversationRefused):
        conversations.turns(member, empty)


def test_renaming_changes_the_title_and_not_the_order(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    said(member, model, planned(member, conversation, "Hello"))
    before, _ = conversations.turns(member, conversation)
    renamed = conversations.rename(member, conversation, "  Greetings \n and  more " + "x" * 200)
    assert renamed.title.startswith("Greetings and more")
    assert len(renamed.title) == 120
    assert renamed.updated_at == before.updated_at
    assert conversations.rename(member, conversation, "  ").title == renamed.title


def test_deleting_takes_the_words_names_what_still_runs_and_is_audited_without_words(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    accepted = said(member, model, planned(member, conversation, "A secret"))
    assert conversations.delete(member, conversation, actor=ACTOR) == [accepted.generation_id]
    with every_tenant("the test counts"):
        assert not ChatMessage.objects.exists()
    event = AuditEvent.objects.get(action="conversation.delete")
    assert (event.object_id, event.tenant_id) == (str(conversation), member.tenant_id)
    assert "secret" not in str([event.object_name, event.before, event.after])
    answered(valkey, model, "too late")


def test_a_conversation_belongs_to_a_person(model: LanguageModel, tenant: Tenant) -> None:
    key = Principal(
        tenant_id=tenant.id, tenant_name="", scopes=frozenset(), name="a key", api_key_id=uuid.uuid4()
    )
    with pytest.raises(ValueError, match="conversations belong to members"):
        conversations.start(key, model=model, lane=None)


def test_a_turn_is_written_in_a_transaction_that_can_take_it_back(
    valkey: redis.Redis, member: Principal, model: LanguageModel
) -> None:
    conversation = started(member, model)
    turn = planned(member, conversation, "Hello")

    def fail(generation: object) -> None:
        assert transaction.get_connection().in_atomic_block
        raise KeyError("after the turn")

    with pytest.raises(KeyError):
        intake.accept(
            member,
            submission(model),
            within=lambda generation: (conversations.append_turn(turn, generation), fail(generation))[1],
        )
    assert contents(member, conversation) == []


MESSAGES = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant"]), st.text(max_size=20)), max_size=12
)


@given(MESSAGES)
def test_what_a_template_reads_never_repeats_a_role_and_loses_no_word(messages: list[Message]) -> None:
    result = readable(messages)
    assert all(one.role != other.role for one, other in itertools.pairwise(result))
    assert not any(message.role == "assistant" and not message.content for message in result)
    kept = [message.content for message in messages if message.role != "assistant" or message.content]
    assert "".join(message.content for message in result).replace("\n", "") == "".join(kept).replace("\n", "")


@given(st.text(max_size=300))
def test_a_title_is_one_short_line_whatever_was_said(text: str) -> None:
    title = title_of([Message("system", "Be brief."), Message("user", text)])
    assert 0 < len(title) <= TITLE_LENGTH
    assert len(title.splitlines()) == 1


def test_a_title_is_cut_between_words() -> None:
    title = title_of([Message("user", "\n\n  Explain how " + "a very long sentence, " * 10)])
    assert title.startswith("Explain how a very long sentence")
    assert title.endswith(("sentence…", "long…", "very…", "a…"))


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Tell a story in **markdown** with a `list`.", "Tell a story in markdown with a list."),
        ("## Why is *this* __so__?", "Why is this so?"),
        ("- [ ] see [the docs](https://example.com/a_b)", "[ ] see the docs"),
        ("> 1. ***Both*** ~~gone~~", "Both gone"),
        ("```python\nprint(snake_case_name)\n```", "print(snake_case_name)"),
        ("What is 2 * 3 * 4?", "What is 2 * 3 * 4?"),
        ("---\nAfter the rule", "After the rule"),
        ("**", "**"),
    ],
)
def test_a_title_is_words_without_their_markup(said: str, title: str) -> None:
    assert title_of([Message("user", said)]) == title
