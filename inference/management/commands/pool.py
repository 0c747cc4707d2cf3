"""``manage.py pool``: what drafts are guessed by."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.actors import command_actor
from accounts.models import Tenant
from inference import suffix_pools
from inference.engine.drafting import pool_files
from inference.engine.preparation.progress import Advance
from inference.management.serving import load_engine
from inference.models import LanguageModel
from signalbox.configuration import configuration

_ANSWER_TOKENS = 256
_ROWS = 8
#: A line of progress for so many answers, where there is no terminal.
_ANSWERS_A_LINE = 10


class Command(BaseCommand):
    help = "Build a model's neutral pool of drafts, list the pools on this machine, forget a tenant's."
    # They load the whole site, which no pool needs.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        build = verbs.add_parser(
            "build",
            help="Let a model answer neutral prompts, and keep the answers as its neutral pool. Takes minutes; goes on "
            "where it was interrupted. Workers use it after a restart.",
        )
        build.add_argument("model", help="The name of a prepared model.")
        build.add_argument(
            "--output", type=Path, help="Write the pool here instead of where workers find it."
        )
        build.add_argument(
            "--prompts",
            type=Path,
            help="A file with a prompt a line, instead of those that come with the product.",
        )
        build.add_argument(
            "--answer-tokens",
            type=int,
            default=_ANSWER_TOKENS,
            metavar="N",
            help="The longest answer; default: %(default)s.",
        )
        build.add_argument(
            "--rows",
            type=int,
            default=_ROWS,
            metavar="N",
            help="Answers that are generated at once; default: %(default)s.",
        )
        verbs.add_parser("list", help="Print the pools on this machine.")
        forget = verbs.add_parser(
            "forget",
            help="Delete what workers on this machine learned from a tenant's answers. Running ones drop it within "
            "seconds. It is learned anew unless the tenant's suffix pool is switched off.",
        )
        forget.add_argument("tenant", help="The tenant's short name.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["verb"] == "build":
            self._build(options)
        elif options["verb"] == "list":
            self._list()
        else:
            self._forget(options["tenant"])

    def _build(self, options: dict[str, Any]) -> None:
        if min(options["answer_tokens"], options["rows"]) < 1:
            raise CommandError("--answer-tokens and --rows are at least 1.")
        model = LanguageModel.objects.filter(name=options["model"]).first()
        if model is None:
            raise CommandError(
                f"There is no model named {options['model']!r}. `manage.py model list` prints them."
            )
        prompts = _prompts(options["prompts"])
        engine = load_engine(model)
        # After the BLAS that has to be there before MLX.
        from inference.engine.drafting.neutral_building import build

        path = options["output"] or pool_files.neutral_path(configuration().pools_dir, model.name)
        notes = path.with_name(f"{path.name}.unfinished")
        with self._progress(len(prompts)) as advance:
            content = build(
                engine,
                prompts,
                answer_tokens=options["answer_tokens"],
                rows=options["rows"],
                notes=notes,
                advance=advance,
            )
        suffix_pools.keep_neutral(path, content, model=model, actor=command_actor("pool build"))
        notes.unlink()
        self.stdout.write(
            f"{path}: {len(content.texts)} answers, {content.tokens:,} tokens, {path.stat().st_size / 1000:,.0f} kB."
        )

    def _list(self) -> None:
        pools_dir = configuration().pools_dir
        models = LanguageModel.objects.values_list("name", flat=True)
        pools = [*suffix_pools.neutral_pools(pools_dir, models), *suffix_pools.tenant_pools(pools_dir)]
        for pool in sorted(pools, key=lambda pool: pool.model):
            what = pool.problem or (
                f"{pool.answers} answers, {pool.tokens:,} tokens, {pool.size_bytes / 1000:,.0f} kB"
            )
            self.stdout.write(f"{pool.model:<30} {pool.owner:<30} {what}")
        if not pools:
            self.stdout.write(
                "Nothing was built or learned on this machine. Models that come with a neutral pool use that."
            )

    def _forget(self, slug: str) -> None:
        tenant = Tenant.objects.filter(slug=slug).first()
        if tenant is None:
            raise CommandError(f"There is no tenant {slug!r}. `manage.py tenant list` prints them.")
        models = suffix_pools.forget(
            configuration().pools_dir, tenant=tenant, actor=command_actor("pool forget")
        )
        forgotten = f"Forgot what was learned from {slug}, for {', '.join(models)}." if models else ""
        again = "It is learned anew: its suffix pool is switched on." if tenant.suffix_pool else ""
        nothing = f"Nothing that was learned from {slug} was saved on this machine."
        self.stdout.write(" ".join(filter(None, [forgotten or nothing, again])))

    @contextmanager
    def _progress(self, total: int) -> Iterator[Advance]:
        """A bar on a terminal, a line now and then elsewhere."""
        if sys.stderr.isatty():
            from tqdm import tqdm

            with tqdm(desc="Answers", total=total, file=sys.stderr) as bar:
                yield bar.update
            return
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            earlier, done = done, done + count
            if done == total or done // _ANSWERS_A_LINE > earlier // _ANSWERS_A_LINE:
                self.stderr.write(f"{done} of {total} answers")

        yield advance


def _prompts(path: Path | None) -> list[str]:
    from inference.engine.drafting.neutral_pool import neutral_prompts

    if path is None:
        return neutral_prompts()
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"The prompts cannot be read: {error}") from error
