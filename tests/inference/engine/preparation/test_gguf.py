"""A GGUF file becomes the model that it was made from."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf.quants
import mlx.core as mx
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from mlx_lm.utils import load_model
from safetensors.numpy import save_file

from inference.engine.preparation import Precision, PreparationError, Problem, prepare, read_prepared
from inference.engine.preparation.gguf_file import read_gguf
from inference.engine.preparation.gguf_llama import llama3_rope_factors
from inference.engine.preparation.gguf_tensors import dequantize, to_dtype
from tests.inference.engine.preparation.tiny_gguf import Weights, rounded, write_gguf

PROMPT = [5, 60, 7, 100, 33, 8, 9, 200, 41]


def logits(model_dir: Path) -> np.ndarray[Any, Any]:
    model, _ = load_model(model_dir)
    return np.array(model(mx.array([PROMPT]))[0].astype(mx.float32))


def with_weights(checkpoint: Path, directory: Path, weights: Weights, **config: Any) -> Path:
    """A model directory as mlx-lm loads it, with other weights."""
    directory.mkdir()
    original = json.loads((checkpoint / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(original | config))
    save_file(weights, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_a_dequantized_gguf_has_the_logits_of_its_weights(
    checkpoint: Path, models: Path, tmp_path: Path, kind: str
) -> None:
    type_ = GGMLQuantizationType[kind]
    prepared = prepare(
        str(write_gguf(checkpoint, tmp_path / "tiny.gguf", type_)), models, "tiny", precision="float32"
    )
    reference = with_weights(checkpoint, tmp_path / "reference", rounded(checkpoint, type_))
    np.testing.assert_array_equal(logits(prepared.directory), logits(reference))
    assert (prepared.record.dtype, prepared.record.quantization) == ("float32", "")


@pytest.mark.parametrize(
    ("kind", "quantization", "dtype", "tolerance"),
    [
        ("F32", "", "float32", 0.0),
        ("F16", "", "float16", 0.05),
        ("BF16", "", "bfloat16", 0.2),
        ("Q8_0", "8-bit, group 32", "float16", 0.05),
        ("Q4_0", "4-bit, group 32", "float16", 0.05),
        ("Q4_1", "4-bit, group 32", "float16", 0.05),
        ("Q5_1", "", "float16", 0.05),
    ],
)
def test_a_native_gguf_keeps_its_packing(
    checkpoint: Path, models: Path, tmp_path: Path, kind: str, quantization: str, dtype: str, tolerance: float
) -> None:
    type_ = GGMLQuantizationType[kind]
    prepared = prepare(
        str(write_gguf(checkpoint, tmp_path / "tiny.gguf", type_)), models, "tiny", precision="native"
    )
    reference = with_weights(checkpoint, tmp_path / "reference", rounded(checkpoint, type_))
    assert (prepared.record.quantization, prepared.record.dtype) == (quantization, dtype)
    difference = np.abs(logits(prepared.directory) - logits(reference)).mean()  # from 16-bit rounding alone
    assert difference <= tolerance


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_packed_weights_are_those_that_mlx_reads_itself(
    checkpoint: Path, models: Path, tmp_path: Path, kind: str
) -> None:
    file = write_gguf(checkpoint, tmp_path / "tiny.gguf", GGMLQuantizationType[kind])
    prepared = prepare(str(file), models, "tiny", precision="native")
    ours, theirs = mx.load(str(prepared.directory / "model.safetensors")), mx.load(str(file))
    for part in ("weight", "scales", "biases"):
        mine, mlx = ours[f"model.layers.1.mlp.down_proj.{part}"], theirs[f"blk.1.ffn_down.{part}"]
        assert mine.dtype == mlx.dtype
        assert mx.array_equal(mine, mlx)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_k_quants_are_dequantized(tmp_path: Path, kind: str) -> None:
    type_ = GGMLQuantizationType[kind]
    raw = np.random.default_rng(1).integers(
        0, 60, gguf.quants.quant_shape_to_byte_shape((3, 512), type_), np.uint8
    )
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("weights", raw, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(tmp_path / "k.gguf")
    values = dequantize(file, file.tensors["weights"])
    assert values.shape == (3, 512)
    np.testing.assert_array_equal(values, gguf.quants.dequantize(raw, type_))


def test_a_tied_head_and_biases_survive(checkpoint: Path, models: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)

    def change(weights: Weights) -> Weights:
        kept = {name: array for name, array in weights.items() if name != "output.weight"}
        for layer in (0, 1):
            for part in ("attn_v", "attn_output"):
                size = weights[f"blk.{layer}.{part}.weight"].shape[0]
                kept[f"blk.{layer}.{part}.bias"] = rng.standard_normal(size, np.float32)
            # Heads of 16: the halves are interleaved by llama.cpp in the biases too.
            for part in ("attn_q", "attn_k"):
                straight = np.arange(weights[f"blk.{layer}.{part}.weight"].shape[0], dtype=np.float32) / 50
                kept[f"blk.{layer}.{part}.bias"] = straight.reshape(-1, 2, 8).swapaxes(1, 2).reshape(-1)
        return kept

    file = write_gguf(checkpoint, tmp_path / "tiny.gguf", change=change)
    prepared = prepare(str(file), models, "tiny", precision="float32")
    config = json.loads((prepared.directory / "config.json").read_text())
    assert (config["tie_word_embeddings"], config["attention_bias"]) == (True, True)
    keys = mx.load(str(prepared.directory / "model.safetensors"))["model.layers.1.self_attn.k_proj.bias"]
    np.testing.assert_array_equal(np.array(keys), np.arange(32, dtype=np.float32) / 50)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_the_long_context_rule_of_llama_3_is_recognized(
    checkpoint: Path, models: Path, tmp_path: Path, factor: float
) -> None:
    factors = llama3_rope_factors(factor, 10000.0, 16)
    file = write_gguf(
        checkpoint, tmp_path / "tiny.gguf", change=lambda weights: weights | {"rope_freqs.weight": factors}
    )
    prepared = prepare(str(file), models, "tiny", precision="float32")
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert json.loads((prepared.directory / "config.json").read_text())["rope_scaling"] == scaling
    reference = with_weights(
        checkpoint,
        tmp_path / "reference",
        rounded(checkpoint, GGMLQuantizationType.F32),
        rope_scaling=scaling,
    )
    np.testing.assert_array_equal(logits(prepared.directory), logits(reference))


def test_the_record_says_what_the_file_says(checkpoint: Path, models: Path, tmp_path: Path) -> None:
    file = write_gguf(checkpoint, tmp_path / "tiny.gguf")
    record = prepare(str(file), models, "tiny", precision="float32").record
    assert read_prepared(models / "tiny").record == record
    assert record.architecture == "llama"
    assert record.context_length == 512
    assert record.vocab_size == 512
    assert record.has_chat_template
    # The declared one first; llama.cpp ends an answer at <|endoftext|> as well.
    assert record.eos_token_ids == [2, 0]
    assert record.source == str(file)
    assert record.size_bytes == sum(
        path.stat().st_size for path in (models / "tiny").iterdir() if path.name != "signalbox.json"
    )


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.random.default_rng(2).standard_normal(4096, np.float32) * np.float32(3.7)
    expected = np.array(mx.array(values).astype(mx.bfloat16).view(mx.uint16))
    np.testing.assert_array_equal(to_dtype(values, "BF16"), expected)


@pytest.mark.parametrize(
    ("problem", "words", "options"),
    [
        (Problem.UNSUPPORTED_ARCHITECTURE, "'gemma3'", {"architecture": "gemma3"}),
        (Problem.UNSUPPORTED_ARCHITECTURE, "mixture of experts", {"metadata": {"llama.expert_count": 8}}),
        (
            Problem.UNSUPPORTED_ARCHITECTURE,
            "a part of each head",
            {"metadata": {"llama.rope.dimension_count": 8}},
        ),
        (Problem.UNSUPPORTED_ARCHITECTURE, "'yarn'", {"metadata": {"llama.rope.scaling.type": "yarn"}}),
        (Problem.UNSUPPORTED_TOKENIZER, "'llama'", {"metadata": {"tokenizer.ggml.model": "llama"}}),
        (Problem.UNSUPPORTED_TOKENIZER, "'poro-chat'", {"pre": "poro-chat"}),
        (Problem.INCOMPLETE, "no tokenizer", {"without": ("tokenizer.",)}),
        (Problem.INCOMPLETE, "merges", {"without": ("tokenizer.ggml.merges",)}),
        (Problem.CORRUPT, "llama.block_count", {"without": ("llama.block_count",)}),
        (Problem.CORRUPT, "eos_token_id is 9999", {"metadata": {"tokenizer.ggml.eos_token_id": 9999}}),
        (
            Problem.UNSUPPORTED_ARCHITECTURE,
            "blk.0.strange.weight",
            {"change": lambda weights: weights | {"blk.0.strange.weight": np.ones((2, 2), np.float32)}},
        ),
        (
            Problem.UNSUPPORTED_ARCHITECTURE,
            "rotary factors",
            {"change": lambda weights: weights | {"rope_freqs.weight": np.full(8, 3, np.float32)}},
        ),
        (
            Problem.INCOMPLETE,
            "no token embedding",
            {"change": lambda weights: {k: v for k, v in weights.items() if not k.startswith("token_embd")}},
        ),
        (
            Problem.CHECK_FAILED,
            "up_proj",
            {"change": lambda weights: {k: v for k, v in weights.items() if k != "blk.1.ffn_up.weight"}},
        ),
        (
            Problem.CHECK_FAILED,
            "infinite values",
            {"change": lambda weights: weights | {"output_norm.weight": np.full(64, np.nan, np.float32)}},
        ),
    ],
)
def test_what_cannot_be_taken_is_refused_in_one_line(
    checkpoint: Path, models: Path, tmp_path: Path, problem: Problem, words: str, options: dict[str, Any]
) -> None:
    file = write_gguf(checkpoint, tmp_path / "tiny.gguf", **options)
    with pytest.raises(PreparationError, match=words) as refusal:
        prepare(str(file), models, "tiny", precision="float32")
    assert refusal.value.problem is problem
    assert "\n" not in str(refusal.value)
    assert [path.name for path in models.iterdir()] == [".tiny.lock"]


def test_a_file_that_is_a_head_and_no_more_is_told_so(models: Path, tmp_path: Path) -> None:
    file = tmp_path / "head.gguf"
    file.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 0))
    with pytest.raises(PreparationError, match=r"^head\.gguf has no architecture recorded") as refusal:
        prepare(str(file), models, "tiny", precision="float32")
    assert refusal.value.problem is Problem.INCOMPLETE


@pytest.mark.parametrize("precision", ["native", "float32"])
def test_a_file_may_mix_types(checkpoint: Path, models: Path, tmp_path: Path, precision: Precision) -> None:
    """Here the head alone is packed, and the rest is float16."""
    file = write_gguf(checkpoint, tmp_path / "tiny.gguf", GGMLQuantizationType.F16)
    other = write_gguf(checkpoint, tmp_path / "other.gguf", GGMLQuantizationType.Q8_0)
    whole, packed = gguf.GGUFReader(file), gguf.GGUFReader(other)
    writer = gguf.GGUFWriter(tmp_path / "mixed.gguf", "llama")
    for field in whole.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        item = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=item)
    for mine, theirs in zip(whole.tensors, packed.tensors, strict=True):
        tensor = theirs if mine.name == "output.weight" else mine
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    record = prepare(str(tmp_path / "mixed.gguf"), models, "tiny", precision=precision).record
    assert record.quantization == ("8-bit, group 32" if precision == "native" else "")
