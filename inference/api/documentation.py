"""The API's description as a page for people."""

from __future__ import annotations

from typing import Any

from drf_spectacular.views import SpectacularSwaggerSplitView

from signalbox.static_files import MissingStaticFile


class DocumentationPage(SpectacularSwaggerSplitView):
    """Swagger UI from the files that we serve. Without them it is answered as every other page of the site is."""

    def handle_exception(self, exc: Exception) -> Any:
        if isinstance(exc, MissingStaticFile):
            raise exc
        return super().handle_exception(exc)
