"""How the site's forms differ from Django's: their fields are what its style sheet expects."""

from __future__ import annotations

from typing import Any

from django import forms


class SiteForm(forms.Form):
    """Base of all forms of a tenant's area; the templates write its fields one by one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.label_suffix = ""
        for field in self.fields.values():
            if not field.widget.use_fieldset:
                field.widget.attrs["class"] = "input"
