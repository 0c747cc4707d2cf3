"""A directory of safetensors is taken over, widened if that is asked for, and never trusted."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, save_config
from safetensors.numpy import load_file, save_file

from inference.engine.preparation import PreparationError, Problem, prepare
from tests.inference.engine.preparation.test_gguf import logits


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def quantize(checkpoint: Path, bits: int) -> None:
    """Make the checkpoint one that mlx-lm quantized."""
    model, config = load_model(checkpoint)
    nn.quantize(model, group_size=32, bits=bits)
    mx.save_safetensors(str(checkpoint / "model.safetensors"), dict(tree_flatten(model.parameters())))
    save_config(config | {"quantization": {"group_size": 32, "bits": bits}}, checkpoint / "config.json")


def to_bfloat16(checkpoint: Path) -> None:
    weights = mx.load(str(checkpoint / "model.safetensors"))
    half = {name: array.astype(mx.bfloat16) for name, array in weights.items()}
    mx.save_safetensors(str(checkpoint / "model.safetensors"), half)


@pytest.mark.parametrize("precision", ["native", "float32"])
def test_float32_weights_are_copied(checkpoint: Path, models: Path, precision: Any) -> None:
    prepared = prepare(str(checkpoint), models, "tiny", precision=precision)
    copy = prepared.directory / "model.safetensors"
    assert copy.read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert (prepared.record.dtype, prepared.record.context_length) == ("float32", 512)
    assert prepared.record.source == str(checkpoint)


def test_bfloat16_weights_stay_or_are_widened(own_checkpoint: Path, models: Path) -> None:
    to_bfloat16(own_checkpoint)
    native = prepare(str(own_checkpoint), models, "native", precision="native")
    wide = prepare(str(own_checkpoint), models, "wide", precision="float32")
    assert (native.record.dtype, wide.record.dtype) == ("bfloat16", "float32")
    assert wide.record.size_bytes > native.record.size_bytes * 1.5
    kept, widened = (mx.load(str(each.directory / "model.safetensors")) for each in (native, wide))
    assert kept.keys() == widened.keys()
    for name, array in kept.items():
        assert mx.array_equal(array.astype(mx.float32), widened[name])


@pytest.mark.parametrize("bits", [4, 8])
def test_quantized_weights_stay_or_are_dequantized(own_checkpoint: Path, models: Path, bits: int) -> None:
    quantize(own_checkpoint, bits)
    native = prepare(str(own_checkpoint), models, "native", precision="native")
    wide = prepare(str(own_checkpoint), models, "wide", precision="float32")
    assert (native.record.quantization, wide.record.quantization) == (f"{bits}-bit, group 32", "")
    assert wide.record.dtype == "float32"
    np.testing.assert_allclose(logits(wide.directory), logits(native.directory), atol=1e-3)


def test_shards_are_taken_together(own_checkpoint: Path, models: Path) -> None:
    whole = load_file(own_checkpoint / "model.safetensors")
    names = sorted(whole)
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, members in parts.items():
        save_file({name: whole[name] for name in members}, own_checkpoint / file)
    (own_checkpoint / "model.safetensors").unlink()
    index = {name: file for file, members in parts.items() for name in members}
    (own_checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    prepared = prepare(str(own_checkpoint), models, "tiny", precision="native")
    assert parts.keys() <= prepared.record.files.keys()

    (own_checkpoint / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(PreparationError, match=r"lacks model-00002-of-00002\.safetensors \(1 of 2"):
        prepare(str(own_checkpoint), models, "other", precision="native")


@pytest.mark.parametrize(
    ("in_config", "expected"),
    [
        ("one {{ messages }}", "one {{ messages }}"),
        ([{"name": "tool_use", "template": "x"}, {"name": "default", "template": "two"}], "two"),
        (None, "from its own file"),
    ],
)
def test_the_chat_template_is_found_wherever_it_was_kept(
    own_checkpoint: Path, models: Path, in_config: Any, expected: str
) -> None:
    edit(own_checkpoint / "tokenizer_config.json", lambda config: config.update(chat_template=in_config))
    if in_config is None:
        (own_checkpoint / "chat_template.jinja").write_text(expected)
    prepared = prepare(str(own_checkpoint), models, "tiny", precision="native")
    config = json.loads((prepared.directory / "tokenizer_config.json").read_text())
    assert (config["chat_template"], prepared.record.has_chat_template) == (expected, True)


def test_a_base_model_has_no_chat_template(own_checkpoint: Path, models: Path) -> None:
    edit(own_checkpoint / "tokenizer_config.json", lambda config: config.pop("chat_template"))
    assert not prepare(str(own_checkpoint), models, "tiny", precision="native").record.has_chat_template


def test_every_declared_end_ends_an_answer(own_checkpoint: Path, models: Path) -> None:
    (own_checkpoint / "generation_config.json").write_text('{"eos_token_id": [7, 0]}')
    edit(
        own_checkpoint / "tokenizer_config.json",
        lambda config: config.update(eos_token={"content": "<|im_end|>"}),
    )
    record = prepare(str(own_checkpoint), models, "tiny", precision="native").record
    assert record.eos_token_ids == [7, 0, 2]
    assert "generation_config.json" in record.files


def without(name: str) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / name).unlink()


def config(**changes: Any) -> Callable[[Path], object]:
    def spoil(checkpoint: Path) -> None:
        edit(checkpoint / "config.json", lambda content: content.update(changes))

    return spoil


def only_pickles(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(pickle.dumps({}))


def cut(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def wrong_offsets(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header["lm_head.weight"]["data_offsets"] = [0, 4]
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])


def weights(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def spoil(checkpoint: Path) -> None:
        arrays = load_file(checkpoint / "model.safetensors")
        change(arrays)
        save_file(arrays, checkpoint / "model.safetensors")

    return spoil


def file(name: str, content: str) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / name).write_text(content)


def too_few_logits(checkpoint: Path) -> None:
    config(vocab_size=500)(checkpoint)
    heads = ("model.embed_tokens.weight", "lm_head.weight")
    weights(lambda arrays: arrays.update({name: arrays[name][:500] for name in heads}))(checkpoint)


@pytest.mark.parametrize(
    ("problem", "words", "spoil"),
    [
        (Problem.NOT_A_MODEL, "it has no config.json", without("config.json")),
        (Problem.CORRUPT, "config.json is not a JSON object", file("config.json", "[1, 2")),
        (Problem.UNSUPPORTED_ARCHITECTURE, "'warp_drive'", config(model_type="warp_drive")),
        (Problem.UNSUPPORTED_ARCHITECTURE, "does not know", config(model_type="../../tmp/evil")),
        (Problem.INCOMPLETE, "no architecture recorded", config(model_type=None)),
        (Problem.REMOTE_CODE, "'model.py'", config(model_file="model.py")),
        (Problem.UNSAFE_WEIGHTS, r"pytorch_model\.bin, a format that can run code", only_pickles),
        (Problem.INCOMPLETE, "has no weights", without("model.safetensors")),
        (Problem.UNSUPPORTED_TOKENIZER, r"has no tokenizer\.json", without("tokenizer.json")),
        (Problem.UNSUPPORTED_TOKENIZER, "cannot be read", file("tokenizer.json", "{}")),
        (Problem.INCOMPLETE, "how long its context is", config(max_position_embeddings=None)),
        (Problem.TRUNCATED, "ends in the middle of its weights", cut),
        (Problem.TRUNCATED, "not a whole safetensors file", file("model.safetensors", "x")),
        (Problem.CORRUPT, r"place of lm_head\.weight", wrong_offsets),
        (
            Problem.CHECK_FAILED,
            "Missing 1 parameters",
            weights(lambda arrays: arrays.pop("model.norm.weight")),
        ),
        (
            Problem.CHECK_FAILED,
            "not in model",
            weights(lambda arrays: arrays.update(strange=np.ones(3, np.float32))),
        ),
        (
            Problem.CHECK_FAILED,
            "infinite values",
            weights(lambda arrays: arrays.update({"model.norm.weight": np.full(64, np.inf, np.float32)})),
        ),
        (Problem.CHECK_FAILED, "has token 511, but the model knows only 500", too_few_logits),
    ],
)
def test_what_cannot_be_taken_is_refused_in_one_line(
    own_checkpoint: Path, models: Path, problem: Problem, words: str, spoil: Callable[[Path], object]
) -> None:
    spoil(own_checkpoint)
    with pytest.raises(PreparationError, match=words) as refusal:
        prepare(str(own_checkpoint), models, "tiny", precision="native")
    assert refusal.value.problem is problem
    assert "\n" not in str(refusal.value)
    assert [path.name for path in models.iterdir()] == [".tiny.lock"]


def test_no_code_of_the_model_is_taken_over(own_checkpoint: Path, models: Path) -> None:
    (own_checkpoint / "modeling_tiny.py").write_text("raise SystemExit")
    edit(
        own_checkpoint / "config.json",
        lambda content: content.update(auto_map={"AutoModel": "modeling_tiny.X"}),
    )
    prepared = prepare(str(own_checkpoint), models, "tiny", precision="native")
    assert {path.suffix for path in prepared.directory.iterdir()} == {".json", ".safetensors"}
