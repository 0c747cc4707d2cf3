"""Whether this process lives, and whether the site can serve."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse


async def live(request: HttpRequest) -> JsonResponse:
    """The process answers. Load never makes this false."""
    return JsonResponse({"status": "live"})
