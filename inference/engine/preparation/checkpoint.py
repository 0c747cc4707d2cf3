"""A model from a directory of safetensors, as mlx-lm and Hugging Face write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from inference.engine.preparation.architecture import require_architecture
from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.progress import Progress
from inference.engine.preparation.record import FileRecord, Precision
from inference.engine.preparation.source import (
    Written,
    copy_file,
    hash_files,
    require_memory,
    require_space,
    write_text,
)
from inference.engine.preparation.weights_file import read_headers

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_INDEX = "model.safetensors.index.json"
#: Taken over as they are, if they are there.
_OPTIONAL_FILES = ("generation_config.json", "special_tokens_map.json", "hf_quant_config.json")
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")


class CheckpointSource:
    """A directory with ``config.json``, ``model*.safetensors`` and ``tokenizer.json``.

    Nothing in it is executed: pickled weights and models that bring their own code are refused.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def description(self) -> str:
        return str(self._directory)

    def checksum(self, progress: Progress) -> str:
        config = _read_json(self._directory / "config.json")
        names = {
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
            *_OPTIONAL_FILES,
        }
        files = [path for name in names if (path := self._directory / name).is_file()]
        return hash_files([*files, *self._weight_files(config)], f"Reading {self._directory.name}", progress)

    def write(self, directory: Path, precision: Precision, progress: Progress) -> Written:
        config = _read_json(self._directory / "config.json")
        require_architecture(config, self._directory.name)
        weight_files = self._weight_files(config)
        headers = read_headers(weight_files)
        tokenizer_config = self._tokenizer_config()
        tokenizer = self._tokenizer()
        eos_token_ids = self._eos_token_ids(config, tokenizer_config, tokenizer)
        context_length = self._context_length(config)

        quantized = _quantization(config)
        if precision == "float32" and (quantized or headers.dtype != "float32"):
            from inference.engine.preparation.widening import write_float32

            config, files = write_float32(self._directory, directory, progress)
            quantized = ""
        else:
            total = sum(path.stat().st_size for path in weight_files)
            require_memory(total, precision)
            require_space(directory, total)
            files = self._copy_weights(weight_files, directory, total, progress)
        copy_file(self._directory / "tokenizer.json", directory, lambda amount: None)
        for name in _OPTIONAL_FILES:
            if (path := self._directory / name).is_file():
                copy_file(path, directory, lambda amount: None)
        write_text(
            directory, "tokenizer_config.json", json.dumps(tokenizer_config, indent=2, ensure_ascii=False)
        )
        write_text(directory, "config.json", json.dumps(config, indent=2))
        return Written(
            architecture=config["model_type"],
            context_length=context_length,
            eos_token_ids=eos_token_ids,
            has_chat_template="chat_template" in tokenizer_config,
            quantization=quantized,
            files=files,
        )

    def finish(self) -> None:
        """Nothing of it was kept."""

    def _weight_files(self, config: Mapping[str, Any]) -> list[Path]:
        if "model_file" in config:
            raise PreparationError(
                Problem.REMOTE_CODE,
                f"{self._directory.name} brings its own program ({config['model_file']!r}) to be run. Such models are "
                "refused; take one that mlx-lm knows.",
            )
        files = sorted(self._directory.glob("model*.safetensors"))
        if (index := self._directory / _INDEX).is_file():
            named = set(_read_json(index).get("weight_map", {}).values())
            if missing := sorted(named - {path.name for path in files}):
                raise PreparationError(
                    Problem.INCOMPLETE,
                    f"{self._directory.name} lacks {missing[0]} ({len(missing)} of {len(named)} weight files are "
                    "missing). Download it again.",
                )
        if files:
            return files
        for pattern in _PICKLES:
            for pickle in self._directory.glob(pattern):
                raise PreparationError(
                    Problem.UNSAFE_WEIGHTS,
                    f"{self._directory.name} has its weights in {pickle.name}, a format that can run code. Take a "
                    "version with safetensors, or convert it on a machine that you can spare.",
                )
        raise PreparationError(
            Problem.INCOMPLETE,
            f"{self._directory.name} has no weights (model*.safetensors). Download it again.",
        )

    def _copy_weights(
        self, files: list[Path], directory: Path, total: int, progress: Progress
    ) -> dict[str, FileRecord]:
        with progress("Copying the weights", total) as advance:
            return {path.name: copy_file(path, directory, advance) for path in files}

    def _tokenizer(self) -> Tokenizer:
        path = self._directory / "tokenizer.json"
        if not path.is_file():
            raise PreparationError(
                Problem.UNSUPPORTED_TOKENIZER,
                f"{self._directory.name} has no tokenizer.json. Take a version that has one, or convert its tokenizer "
                "with `transformers` first.",
            )
        try:
            return Tokenizer.from_file(str(path))
        except Exception as failure:  # noqa: BLE001 (the library raises nothing narrower)
            raise PreparationError(
                Problem.UNSUPPORTED_TOKENIZER, f"{path} cannot be read ({failure}). Download it again."
            ) from None

    def _tokenizer_config(self) -> dict[str, Any]:
        """``tokenizer_config.json`` with the chat template in it as one text, wherever it was kept."""
        path = self._directory / "tokenizer_config.json"
        config = _read_json(path) if path.is_file() else {}
        config.pop("auto_map", None)
        template = config.pop("chat_template", None)
        if (separate := self._directory / "chat_template.jinja").is_file():
            template = separate.read_text(encoding="utf-8")
        if isinstance(template, list):
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default", next(iter(named.values()), None))
        if template:
            config["chat_template"] = template
        return config

    def _eos_token_ids(
        self, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any], tokenizer: Tokenizer
    ) -> list[int]:
        """Every token that ends an answer, by the generation's, the model's or the tokenizer's configuration."""
        path = self._directory / "generation_config.json"
        generation = _read_json(path) if path.is_file() else {}
        declared = generation.get("eos_token_id") or config.get("eos_token_id")
        if declared is None:
            declared = config.get("text_config", {}).get("eos_token_id")
        ids = declared if isinstance(declared, list) else [declared]
        token = tokenizer_config.get("eos_token")
        ids.append(
            tokenizer.token_to_id(token["content"] if isinstance(token, dict) else token) if token else None
        )
        found = list(dict.fromkeys(number for number in ids if isinstance(number, int)))
        if not found:
            raise PreparationError(
                Problem.INCOMPLETE,
                f"{self._directory.name} names no token that ends an answer. Add `eos_token_id` to its config.json.",
            )
        return found

    def _context_length(self, config: Mapping[str, Any]) -> int:
        for holder in (config, config.get("text_config", {})):
            for key in _CONTEXT_KEYS:
                if isinstance(holder.get(key), int) and holder[key] > 0:
                    length: int = holder[key]
                    return length
        raise PreparationError(
            Problem.INCOMPLETE,
            f"{self._directory.name} does not say how long its context is. Add `max_position_embeddings` to its "
            "config.json.",
        )


def _quantization(config: Mapping[str, Any]) -> str:
    settings = config.get("quantization") or config.get("quantization_config")
    if not settings:
        return ""
    if "bits" in settings and "group_size" in settings:
        return f"{settings['bits']}-bit, group {settings['group_size']}"
    return str(settings.get("quant_method", "quantized"))[:30]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PreparationError(
            Problem.NOT_A_MODEL, f"{path.parent} is not a model: it has no {path.name}."
        ) from None
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise PreparationError(Problem.CORRUPT, f"{path} is not a JSON object. Download it again.")
    return content
