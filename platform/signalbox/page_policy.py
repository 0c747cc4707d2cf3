"""What a browser may load for the site's own pages, and that nobody keeps them."""

from __future__ import annotations

from typing import Any, Final

from csp.constants import NONE, SELF
from csp.decorators import csp_replace
from django.views.decorators.cache import never_cache

#: Our own pages need no inline script or style, and let no string become HTML but through the sanitizer.
_STRICT: Final = {
    "script-src": [SELF],
    "style-src": [SELF],
    "img-src": [SELF],
    "font-src": [NONE],
    "require-trusted-types-for": ["'script'"],
    "trusted-types": ["dompurify"],
}


def strict(view: Any) -> Any:
    """``view`` under the strictest content security policy, and in nobody's cache."""
    return never_cache(csp_replace(_STRICT)(view))
