from __future__ import annotations

from servestatic.storage import CompressedManifestStaticFilesStorage


class MissingStaticFile(ValueError):
    """A page needs a file that was not collected. The message names it."""


class StaticFilesStorage(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Static files under names that hold their content's hash, cached by browsers for good.

    So are the imports between our own ES modules: after an upgrade no browser can mix old modules with new ones. Other
    packages' scripts are left as they are: rewriting what merely looks like an import would break them.
    """

    patterns = (
        *CompressedManifestStaticFilesStorage.patterns,
        ("signalbox/*.js", CompressedManifestStaticFilesStorage._js_module_import_aggregation_patterns[1]),
    )

    def stored_name(self, name: str) -> str:
        """The name with its content's hash. Raises ``MissingStaticFile``."""
        try:
            return str(super().stored_name(name))
        except ValueError as error:
            raise MissingStaticFile(f"{name} is not among the static files that were collected") from error
