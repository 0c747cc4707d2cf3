"""What the chat page asks for besides the socket: its choices, and the member's conversations. JSON, by session.

These are no part of ``/v1``: they take the browser's cookie, and therefore a CSRF token.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final
from uuid import UUID

import redis
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, path, reverse
from django.views.decorators.cache import never_cache
from pydantic import Field

from accounts.actors import actor_of
from accounts.authentication import NotAMember, principal_of_member, principals_of_user
from accounts.models import Entitlement, Lane, Scope, User
from accounts.principal import Principal
from accounts.tenancy import tenant_scope
from inference import cancellation, conversations
from inference.api import ids, language_models
from inference.api.answers import Usage
from inference.api.bodies import read_body
from inference.api.chat_turns import conversation_id
from inference.api.errors import ApiError, ErrorCode, as_api_error
from inference.api.fields import RequestModel
from inference.api.socket_credentials import require
from inference.api.streaming import expired
from inference.conversations import AnswerRecord, ConversationRefusal, ConversationRefused, Summary, Turn
from inference.messages import CancelReason, EndState

_PAGE: Final = 40
_LARGEST_PAGE: Final = 100

View = Callable[..., HttpResponse]


class NewConversation(RequestModel):
    """Where the next first message goes."""

    tenant: str
    model: str
    lane: Annotated[str, Field(max_length=30)] | None = None


class NewTitle(RequestModel):
    """What a conversation is called from now on."""

    title: Annotated[str, Field(max_length=1000)]


def choices(user: User) -> dict[str, Any]:
    """What the page may offer this user, and where its endpoints are."""
    offered = language_models.offered().filter(has_chat_template=True)
    return {
        "user": {"name": user.get_username()},
        "tenants": [_tenant(principal) for principal in principals_of_user(user.id)],
        "models": [{"id": model.name, "context_length": model.context_length} for model in offered],
        "urls": {
            "chat": reverse("chat"),
            "conversation": reverse("conversation", args=["_"]).removesuffix("_"),
            "conversations": reverse("chat-conversations"),
            "options": reverse("chat-options"),
            "socket": "/ws/chat/",
        },
    }


def for_members(**by_method: View) -> View:
    """A view of several methods that answers the signed-in user, and every refusal as JSON."""

    @never_cache
    def view(request: HttpRequest, **arguments: str) -> HttpResponse:
        if not isinstance(request.user, User):
            return _refusal(HTTPStatus.UNAUTHORIZED, "not_authenticated", "Sign in first.")
        answer = by_method.get(request.method or "")
        if answer is None:
            response = _refusal(
                HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", "This method is not offered here."
            )
            response["Allow"] = ", ".join(by_method)
            return response
        try:
            return answer(request, request.user, **arguments)
        except ApiError as error:
            return error.response()
        except redis.RedisError as error:
            return as_api_error(error).response()
        except NotAMember as error:
            return _refusal(HTTPStatus.FORBIDDEN, "not_a_member", str(error))
        except ConversationRefused as error:
            missing = error.code is ConversationRefusal.NOT_FOUND
            return _refusal(
                HTTPStatus.NOT_FOUND if missing else HTTPStatus.CONFLICT, error.code, error.message
            )

    view.methods = tuple(by_method)  # type: ignore[attr-defined]
    return view


def _options(request: HttpRequest, user: User) -> HttpResponse:
    return JsonResponse(choices(user))


def _list(request: HttpRequest, user: User) -> HttpResponse:
    principal = principal_of_member(user.id, _tenant_id(request.GET.get("tenant", "")))
    limit = request.GET.get("limit", str(_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 3 and 1 <= int(limit) <= _LARGEST_PAGE):
        raise ApiError(
            ErrorCode.INVALID_VALUE, f"`limit` must be between 1 and {_LARGEST_PAGE}.", param="limit"
        )
    after = request.GET.get("after")
    found, more = conversations.listing(
        principal, limit=int(limit), after=conversation_id(after) if after is not None else None
    )
    data = [_shown(summary, principal) for summary in found]
    return JsonResponse({"object": "list", "data": data, "has_more": more})


def _start(request: HttpRequest, user: User) -> HttpResponse:
    body = read_body(request, NewConversation)
    principal = principal_of_member(user.id, _tenant_id(body.tenant))
    require(principal, Scope.INFERENCE)
    if body.lane is not None and not Lane.objects.filter(name=body.lane).exists():
        raise ApiError(ErrorCode.UNKNOWN_LANE, "There is no such lane.", param="lane")
    started = conversations.start(
        principal, model=language_models.find(body.model, principal), lane=body.lane
    )
    return JsonResponse(_shown(started, principal), status=HTTPStatus.CREATED)


def _read(request: HttpRequest, user: User, conversation: str) -> HttpResponse:
    principal = _owner(user, conversation)
    summary, turns = conversations.turns(principal, conversation_id(conversation))
    return JsonResponse(
        {"conversation": _shown(summary, principal), "turns": [_turn(turn) for turn in turns]}
    )


def _rename(request: HttpRequest, user: User, conversation: str) -> HttpResponse:
    principal = _owner(user, conversation)
    body = read_body(request, NewTitle)
    return JsonResponse(
        _shown(conversations.rename(principal, conversation_id(conversation), body.title), principal)
    )


def _delete(request: HttpRequest, user: User, conversation: str) -> HttpResponse:
    principal = _owner(user, conversation)
    for generation in conversations.delete(principal, conversation_id(conversation), actor=actor_of(request)):
        cancellation.cancel(generation, CancelReason.CLIENT_REQUESTED)
    return HttpResponse(status=HTTPStatus.NO_CONTENT)


urlpatterns: Final[list[URLPattern]] = [
    path("options", for_members(GET=_options), name="chat-options"),
    path("conversations", for_members(GET=_list, POST=_start), name="chat-conversations"),
    path(
        "conversations/<str:conversation>",
        for_members(GET=_read, PATCH=_rename, DELETE=_delete),
        name="chat-conversation",
    ),
]


def _owner(user: User, conversation: str) -> Principal:
    """The user as a member of the tenant that their conversation is in."""
    principals = {principal.tenant_id: principal for principal in principals_of_user(user.id)}
    tenant = conversations.tenant_of(user.id, conversation_id(conversation), principals)
    if tenant is None:
        raise ConversationRefused.not_found()
    return principals[tenant]


def _tenant_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotAMember from None


def _tenant(principal: Principal) -> dict[str, Any]:
    with tenant_scope(principal.tenant_id):
        standing = Entitlement.objects.filter(ended_at=None).select_related("lane").order_by("lane__rank")
        lanes = [entitlement.lane for entitlement in standing]
    return {
        "id": principal.tenant_id.hex,
        "name": principal.tenant_name,
        "may_generate": Scope.INFERENCE in principal.scopes,
        "lanes": [{"name": lane.name, "rank": lane.rank, "description": lane.description} for lane in lanes],
    }


def _shown(summary: Summary, principal: Principal) -> dict[str, Any]:
    return {
        "id": summary.id.hex,
        "url": reverse("conversation", args=[summary.id.hex]),
        "tenant": principal.tenant_id.hex,
        "title": summary.title,
        "model": summary.model,
        "lane": summary.lane,
        "created_at": summary.created_at.isoformat(),
        "updated_at": summary.updated_at.isoformat(),
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "role": turn.role,
        "content": turn.content,
        "created_at": turn.created_at.isoformat(),
        "answer": _answer(turn.answer) if turn.answer else None,
    }


def _answer(record: AnswerRecord) -> dict[str, Any]:
    """In the words of the socket's frames, so that the page reads both alike."""
    return {
        "generation": ids.generation_id(record.generation_id),
        "live": record.live,
        "state": record.state,
        "model": record.model,
        "lane": record.lane,
        "requested_lane": record.requested_lane or None,
        "reason": record.reason,
        "finish_reason": record.finish_reason or None,
        "cancel_reason": record.cancel_reason or None,
        "error": _failure(record),
        "usage": Usage.of(record.usage).model_dump(),
        "timings": _timings(record),
    }


def _failure(record: AnswerRecord) -> dict[str, str] | None:
    if record.failure_code:
        return {"code": record.failure_code, "message": record.failure_message}
    if record.state == EndState.EXPIRED:
        fault = expired(CancelReason(record.cancel_reason) if record.cancel_reason else None)
        return {"code": fault.code.value, "message": fault.message}
    return None


def _timings(record: AnswerRecord) -> dict[str, Any]:
    pace = None
    if record.first_token_at and record.ended_at and record.usage.completion_tokens > 1:
        writing_s = (record.ended_at - record.first_token_at).total_seconds()
        pace = round((record.usage.completion_tokens - 1) / writing_s, 2) if writing_s > 0 else None
    return {
        "queue_ms": _since(record.created_at, record.claimed_at),
        "first_token_ms": _since(record.created_at, record.first_token_at),
        "total_ms": _since(record.created_at, record.ended_at),
        "tokens_per_second": pace,
    }


def _since(start: datetime, at: datetime | None) -> int | None:
    return None if at is None else max(0, round((at - start).total_seconds() * 1000))


def _refusal(status: HTTPStatus, code: str, message: str) -> JsonResponse:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return JsonResponse({"error": error}, status=status)
