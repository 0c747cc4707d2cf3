"""A model from the Hugging Face Hub, at one revision, without running any of its code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from inference.engine.preparation.checkpoint import CheckpointSource
from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.progress import Progress
from inference.engine.preparation.record import Precision
from inference.engine.preparation.source import Written, hash_file, require_space

HUB_ID = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WANTED = ("*.json", "model*.safetensors", "chat_template.jinja")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")


class HubSource:
    """``owner/name`` or ``owner/name@revision``.

    What is downloaded stays below ``downloads`` until the model is in place, so an interrupted download goes on.
    ``endpoint`` is another server that speaks the Hub's protocol; None: the Hub, or what ``HF_ENDPOINT`` names.
    """

    def __init__(self, hub_id: str, downloads: Path, endpoint: str | None = None) -> None:
        match = HUB_ID.fullmatch(hub_id)
        if match is None:
            raise PreparationError(
                Problem.BAD_NAME, f"{hub_id!r} is not a hub id such as owner/name@revision."
            )
        self._repository: str = match["repository"]
        self._revision: str | None = match["revision"]
        self._commit: str | None = None
        self._downloads = downloads
        self._endpoint = endpoint

    @property
    def description(self) -> str:
        return f"{self._repository}@{self._pinned_commit()}"

    def checksum(self, progress: Progress) -> str:
        return self._pinned_commit()

    def write(self, directory: Path, precision: Precision, progress: Progress) -> Written:
        folder = self._folder()
        folder.mkdir(parents=True, exist_ok=True)
        self._download(folder, progress)
        return CheckpointSource(folder).write(directory, precision, progress)

    def finish(self) -> None:
        shutil.rmtree(self._folder(), ignore_errors=True)

    def _pinned_commit(self) -> str:
        """The commit that the revision names now; asked once, so that all files are of one."""
        if self._commit is None:
            if self._revision is not None and _COMMIT.fullmatch(self._revision):
                self._commit = self._revision
            else:
                from huggingface_hub import HfApi

                with self._refusals():
                    self._commit = (
                        HfApi(self._endpoint).model_info(self._repository, revision=self._revision).sha
                    )
                if self._commit is None:
                    raise PreparationError(
                        Problem.UNREACHABLE, f"The hub names no commit of {self._repository}."
                    )
        return self._commit

    def _folder(self) -> Path:
        return self._downloads / f"{self._repository.replace('/', '--')}@{self._pinned_commit()}"

    def _download(self, folder: Path, progress: Progress) -> None:
        from huggingface_hub import HfApi, hf_hub_download

        commit = self._pinned_commit()
        with self._refusals():
            info = HfApi(self._endpoint).model_info(self._repository, revision=commit, files_metadata=True)
        listed = {file.rfilename: file for file in info.siblings or ()}
        sizes = {name: file.size or 0 for name, file in listed.items()}
        wanted = [
            name for name in sizes if any(fnmatch(name, pattern) for pattern in _WANTED) and "/" not in name
        ]
        if not any(name.endswith(".safetensors") for name in wanted):
            raise self._no_weights(list(sizes))
        total = sum(sizes[name] for name in wanted)
        require_space(folder, total)
        with progress(f"Downloading {self._repository}", total) as advance, self._refusals():
            for name in sorted(wanted):
                hf_hub_download(
                    self._repository,
                    name,
                    revision=commit,
                    local_dir=folder,
                    endpoint=self._endpoint,
                    tqdm_class=_reporting(advance),
                )
        for name in wanted:
            if (large := listed[name].lfs) and hash_file(folder / name, lambda amount: None) != large.sha256:
                (folder / name).unlink()
                raise PreparationError(
                    Problem.CORRUPT,
                    f"{name} of {self._repository} arrived damaged. Try again: it alone is downloaded anew.",
                )

    def _no_weights(self, names: list[str]) -> PreparationError:
        if any(name.endswith(_PICKLES) for name in names):
            return PreparationError(
                Problem.UNSAFE_WEIGHTS,
                f"{self._repository} has its weights only in a format that can run code (pickle). Take a version with "
                "safetensors, for instance one converted by mlx-community.",
            )
        return PreparationError(
            Problem.NOT_A_MODEL,
            f"{self._repository} has no model*.safetensors. Take the model's MLX or safetensors form; a GGUF file "
            "can be downloaded and added by its path.",
        )

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        # HTTPError is that of the HTTP library that the hub's client uses, whichever that is.
        from huggingface_hub.errors import (  # type: ignore[attr-defined]
            GatedRepoError,
            HTTPError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        try:
            yield
        except GatedRepoError:
            raise PreparationError(
                Problem.UNREACHABLE,
                f"{self._repository} asks for consent. Accept its terms on the hub, then set HF_TOKEN to your token.",
            ) from None
        except RepositoryNotFoundError:
            raise PreparationError(
                Problem.NOT_FOUND,
                f"The hub knows no model {self._repository}, or shows it only to its members (set HF_TOKEN).",
            ) from None
        except RevisionNotFoundError:
            raise PreparationError(
                Problem.NOT_FOUND, f"{self._repository} has no revision {self._revision}."
            ) from None
        except (HTTPError, LocalEntryNotFoundError) as failure:
            [first, *_] = str(failure).strip().splitlines() or [type(failure).__name__]
            raise PreparationError(
                Problem.UNREACHABLE,
                f"The hub could not be reached for {self._repository} ({first}). Try again: the download goes on where "
                "it stopped.",
            ) from failure


def _reporting(advance: Callable[[int], object]) -> type[Any]:
    """A progress bar class for huggingface_hub that draws nothing and tells ``advance`` instead."""
    from tqdm import tqdm

    class Reporting(tqdm):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*arguments, **(options | {"disable": True}))
            advance(int(options.get("initial") or 0))

        def update(self, n: float | None = 1) -> bool | None:
            advance(int(n or 0))
            return None

    return Reporting
