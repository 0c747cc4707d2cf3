"""One URL with an endpoint for each of its methods."""

from __future__ import annotations

from typing import Final

from asgiref.sync import markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from inference.api.endpoint import Endpoint
from inference.api.errors import ApiError, ErrorCode


class Resource:
    """An async view of several endpoints, of which no two take the same method."""

    #: As for the endpoints: no cookie of a browser opens anything here.
    csrf_exempt = True

    def __init__(self, *endpoints: Endpoint) -> None:
        self.endpoints: Final = endpoints
        self.methods: Final = tuple(method for endpoint in endpoints for method in endpoint.methods)
        if len(set(self.methods)) != len(self.methods):
            raise ValueError(f"two endpoints of one URL take the same method: {', '.join(self.methods)}")
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest, **arguments: str) -> HttpResponseBase:
        for endpoint in self.endpoints:
            if request.method in endpoint.methods:
                return await endpoint(request, **arguments)
        return ApiError(
            ErrorCode.METHOD_NOT_ALLOWED,
            f"This URL takes {', '.join(self.methods[:-1])} and {self.methods[-1]} requests only.",
            headers={"Allow": ", ".join(self.methods)},
        ).response()


def endpoints_of(view: object) -> tuple[Endpoint, ...]:
    """The endpoints behind the view of a route below ``/v1``; none for what is no endpoint's."""
    match view:
        case Endpoint():
            return (view,)
        case Resource():
            return view.endpoints
    return ()
