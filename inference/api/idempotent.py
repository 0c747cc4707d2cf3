"""The header ``Idempotency-Key``: read, held to its rules, and answered from what its first request made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, TypeVar

from pydantic import BaseModel

from accounts.key_text import CONTAINS_KEY
from accounts.tenancy import tenant_scope
from inference import idempotency
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, Parameter
from inference.api.errors import ApiError, ErrorCode
from inference.api.ids import EventId
from inference.api.reading import EventsAnswer, complete_entries, shape_of
from inference.api.sampling_parameters import StreamOptions
from inference.idempotency import NamedRequest
from inference.models import IdempotencyKey

Answer = TypeVar("Answer", bound=AnswerModel)

HEADER: Final = "Idempotency-Key"
#: Says of an answer that an earlier request with the same key made what it tells.
REPLAYED: Final = {"Idempotent-Replayed": "true"}

IDEMPOTENCY_KEY: Final = Parameter(
    name=HEADER,
    location="header",
    schema={"type": "string", "maxLength": idempotency.LONGEST},
    description="Your own name for this request. Sent again with the same body within 24 hours, it is answered with "
    "what the first one made, also as a stream; with another body it is 409.",
)


def named_request(call: Call, body: BaseModel | None, route: str) -> NamedRequest | None:
    """The request by the name that its client gave it, if it did. Raises ``ApiError`` for what is no name."""
    key = call.request.headers.get(HEADER)
    if key is None:
        return None
    if not (0 < len(key) <= idempotency.LONGEST and key.isascii() and key.isprintable()):
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"The header `{HEADER}` must have 1 to {idempotency.LONGEST} printable ASCII characters.",
            param=HEADER,
        )
    if CONTAINS_KEY.search(key):
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"The header `{HEADER}` contains an API key, and would be stored. Name the request otherwise.",
            param=HEADER,
        )
    content = {
        "priority": call.request.headers.get("X-Priority"),
        # As text, for the hash has no floats: they print unequally.
        "body": json.dumps(body.model_dump(mode="json"), sort_keys=True) if body is not None else None,
    }
    return idempotency.named(call.principal, route, key, content)


def earlier(request: NamedRequest) -> IdempotencyKey | None:
    """What the name stands for already. Raises ``ApiError`` 409 where that was another body."""
    try:
        return idempotency.earlier(request)
    except idempotency.BodyDiffers:
        raise ApiError(
            ErrorCode.IDEMPOTENCY_CONFLICT,
            f"This `{HEADER}` was used with another body. Use a new one for a new request.",
            param=HEADER,
        ) from None


def answer_once(
    call: Call,
    body: BaseModel | None,
    make: Callable[[], Answer],
    *,
    route: str,
    answer: type[Answer],
    kept: Callable[[Answer], Answer] = lambda answer: answer,
) -> Answer:
    """The answer of a route that makes no generation: ``make``'s, or that of the earlier request of the same name.

    ``kept`` takes out of an answer what must not be stored: secrets. A repeated request is told the rest.
    """
    request = named_request(call, body, route)
    if request is None:
        return make()
    made: list[Answer] = []

    def keep() -> dict[str, object]:
        made.append(make())
        return kept(made[0]).model_dump(mode="json")

    row = earlier(request)
    if row is None:
        try:
            idempotency.make_once(request, keep)
        except idempotency.AlreadyMade:
            row = earlier(request)
        else:
            return made[0]
    if row is None:
        raise RuntimeError("an idempotency key that was just taken is not there")
    return answer.model_validate(row.answer)


def repeated(call: Call, row: IdempotencyKey, *, stream: bool, options: StreamOptions) -> EventsAnswer:
    """What the generation answers that an earlier request of this name made, whether it has ended or runs.

    Whoever reads it so ends nothing by leaving. Raises ``LogExpired`` where it cannot be read any more.
    """
    generation = row.generation
    if generation is None:
        raise TypeError("the name stands for no generation")
    start = EventId(generation.id, 0)
    with tenant_scope(call.principal.tenant_id):
        complete = complete_entries(generation, start)
    return EventsAnswer(
        call, generation, shape_of(generation), options, start, complete, stream=stream, headers=REPLAYED
    )
