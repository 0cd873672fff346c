"""Which files a path opens, shards and their index, and damage to every format."""

import json
import pathlib
import random
import shutil
import sys
import zipfile

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from attention_jax.checkpoint.files import open_checkpoint, refusals, torch_file

DATA = pathlib.Path(__file__).parents[1] / "data"
A, B = np.arange(6.0).reshape(2, 3), np.arange(5.0) - 7
CONFIG = {"model_type": "bert", "nested": {"a": [1, None]}}
SAFETENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
ONE, TWO = "one.safetensors", "two.safetensors"
BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def write_gguf(path):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokens", ["a", "", "ccc"])
    writer.add_array("numbers", [3, 1, 2])
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        data = gguf.quants.quantize(np.ones((2, 64), np.float32), kind)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    writer.add_tensor("A", A.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def fill(folder, *names, config=CONFIG):
    """Writes the checkpoints `names` into `folder`; shards are "one" and "two" with the suffix."""
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for name in names:
        suffix = pathlib.PurePath(name.removesuffix(".index.json")).suffix
        if name == SAFETENSORS:
            save_file({"A": A}, folder / name)
        elif name.endswith(".gguf"):
            write_gguf(folder / name)
        elif suffix in (".bin", ".pt", ".pth") and not name.endswith(".json"):
            shutil.copy(DATA / "zip.pt", folder / name)
        else:
            if suffix == ".bin":
                shutil.copy(DATA / "zip.pt", folder / "one.bin")
                places = dict.fromkeys(torch_file.read(DATA / "zip.pt"), "one.bin")
            else:
                places = {"A": ONE, "B": TWO}
                save_file({"A": A}, folder / ONE)
                save_file({"B": B}, folder / TWO)
            (folder / name).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.mark.parametrize(
    ("names", "opened", "format_", "count"),
    [
        ([SAFETENSORS], SAFETENSORS, "safetensors", 1),
        ([INDEX], INDEX, "safetensors", 2),
        ([BIN], BIN, "torch", 20),
        ([BIN_INDEX], BIN_INDEX, "torch", 20),
        (["x.gguf"], "x.gguf", "gguf", 3),
        ([BIN_INDEX, BIN, INDEX, SAFETENSORS, "x.gguf", "y.gguf"], SAFETENSORS, "safetensors", 1),
        ([BIN_INDEX, BIN, INDEX, "x.gguf"], INDEX, "safetensors", 2),
        ([BIN_INDEX, BIN, "x.gguf"], BIN, "torch", 20),
    ],
)
def test_what_a_folder_opens(tmp_path, names, opened, format_, count):
    checkpoint = open_checkpoint(fill(tmp_path, *names))
    assert (checkpoint.path, checkpoint.format) == (tmp_path / opened, format_)
    assert len(checkpoint.tensors) == count
    if format_ == "gguf":
        assert checkpoint.config["tokens"] == ["a", "", "ccc"]
    else:
        assert checkpoint.config == CONFIG
    # The same file by its own name, as a string.
    again = open_checkpoint(str(tmp_path / opened))
    assert (again.path, again.config) == (checkpoint.path, checkpoint.config)
    assert list(again.tensors) == list(checkpoint.tensors)


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_other_suffixes_by_name(tmp_path, suffix):
    fill(tmp_path, f"x{suffix}")
    assert open_checkpoint(tmp_path / f"x{suffix}").format == "torch"


def test_tensors_are_read_when_indexed_and_only_then(tmp_path, monkeypatch):
    checkpoint = open_checkpoint(fill(tmp_path, BIN))
    tensors = checkpoint.tensors
    opened = []
    whole = zipfile.ZipFile.open
    monkeypatch.setattr(
        zipfile.ZipFile, "open", lambda self, name: opened.append(name) or whole(self, name)
    )
    assert "whole" in tensors and "nothing" not in tensors and len(list(tensors)) == 20
    assert tensors.shape("whole") == (5, 7) and tensors.dtype("whole") == np.float32
    assert "20 tensors" in repr(checkpoint) and "bert" not in repr(checkpoint)
    assert not opened
    first, second = tensors["whole"], tensors["whole"]
    assert len(opened) == 2
    np.testing.assert_array_equal(first, second)
    with pytest.raises(KeyError, match="nothing"):
        _ = tensors["nothing"]


def test_values_come_from_the_right_shard(tmp_path):
    tensors = open_checkpoint(fill(tmp_path, INDEX)).tensors
    np.testing.assert_array_equal(tensors["A"], A)
    np.testing.assert_array_equal(tensors["B"], B)


def index(**places):
    return json.dumps({"weight_map": places})


BROKEN = {
    "absent tensor": (index(A=ONE, B=TWO, C=TWO), ValueError, ["'C in two.safetensors'"]),
    "unlisted tensor": (index(A=ONE, C=TWO), ValueError, ["'C in two.", "unlisted 'B in two."]),
    "other shard": (index(A=TWO, B=ONE), ValueError, ["'A in two.", "'B in one."]),
    "tensor twice": (
        index(A="twice.safetensors", B=TWO), ValueError, ["'B in twice.safetensors'"],
    ),
    "absent shard": (
        index(A=ONE, B="3.safetensors"), FileNotFoundError, ["no '3.safetensors'"],
    ),
    "other folder": (index(A="../one.safetensors"), ValueError, ["'../one.safetensors'", "'A'"]),
    "number": (index(A=1), ValueError, ["1 for tensor 'A'"]),
    "no map": ("{}", ValueError, ["'weight_map'"]),
    "empty map": (index(), ValueError, ["'weight_map'"]),
    "list": ("[]", ValueError, ["JSON object", "list"]),
    "no JSON": ("{", ValueError, ["JSON"]),
    "no text": (b"\xff", ValueError, ["JSON"]),
    "deep JSON": ("[" * 200_000, ValueError, ["JSON"]),
    "two formats": (index(A=ONE, B="zip.bin"), ValueError, ["'.bin', '.safetensors'"]),
    "GGUF": (index(A="x.gguf"), ValueError, ["b'GGUF'"]),
    "other format": (index(A="x.msgpack"), ValueError, ["'.msgpack'"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "error", "pieces"), BROKEN.values(), ids=BROKEN)
def test_an_index_that_does_not_fit_is_refused(tmp_path, text, error, pieces):
    fill(tmp_path, INDEX, "zip.bin", "x.gguf")
    save_file({"A": A, "B": B}, tmp_path / "twice.safetensors")
    (tmp_path / "x.msgpack").write_bytes(b"")
    (tmp_path / INDEX).write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(tmp_path, error, INDEX, *pieces)


def refused(path, error, *pieces):
    with pytest.raises(error) as raised:
        open_checkpoint(path)
    assert raised.type is error
    missing = [piece for piece in ("expected", "Remedy", *pieces) if piece not in str(raised.value)]
    assert not missing, str(raised.value)


def test_paths_that_open_nothing(tmp_path):
    refused(tmp_path / "nowhere", FileNotFoundError, "nowhere", "nothing there")
    refused(tmp_path, ValueError, str(tmp_path), SAFETENSORS, "got none")
    fill(tmp_path, "x.gguf", "y.gguf")
    refused(tmp_path, ValueError, "'x.gguf', 'y.gguf'", "name the file")
    for name in ("flax_model.msgpack", "config.json", "weights"):
        (tmp_path / name).touch()
        refused(tmp_path / name, ValueError, name, ".safetensors", "suffix")
    with pytest.raises(TypeError):
        open_checkpoint(None)


@pytest.mark.parametrize("name", [SAFETENSORS, INDEX, BIN])
def test_settings_that_are_missing_or_damaged(tmp_path, name):
    fill(tmp_path, name, config=None)
    refused(tmp_path, ValueError, "config.json", "no such file")
    (tmp_path / "config.json").write_text("[1]")
    refused(tmp_path, ValueError, "config.json", "JSON object", "list")


@pytest.mark.parametrize("package", ["safetensors", "gguf"])
def test_a_package_that_is_not_installed(tmp_path, monkeypatch, package):
    fill(tmp_path, f"model.{package}")

    open_checkpoint(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        # What Python itself takes for "not there".
        monkeypatch.setitem(sys.modules, name, None)
    refused(tmp_path, ImportError, package, 'pip install "attention-jax[checkpoints]"')


def test_long_lists_are_cut():
    assert refusals.listing("abc") == "'a', 'b', 'c'"
    assert refusals.listing(range(11)) == "0, 1, 2, 3, 4, 5, 6, 7 and 3 more"


@pytest.mark.parametrize("name", [SAFETENSORS, "x.gguf", "zip.pt", "legacy.pt"])
def test_a_damaged_file_is_refused_or_read_whole(tmp_path, name):
    """Truncated at 30 places, and with bytes changed at 60: no other error, no other shape."""
    fill(tmp_path)
    shutil.copy(DATA / name, tmp_path) if name.endswith(".pt") else fill(tmp_path, name)
    path = tmp_path / name
    good = path.read_bytes()
    draw = random.Random(0)
    damaged = [good[:length] for length in draw.sample(range(len(good)), 30)]
    for _ in range(60):
        changed = bytearray(good)
        # Half of the changes fall into the header, which is the first part of each format.
        place = draw.randrange(len(good) if draw.random() < 0.5 else min(len(good), 600))
        changed[place] ^= draw.randrange(1, 256)
        damaged.append(bytes(changed))
    outcomes = set()
    for data in damaged:
        path.write_bytes(data)
        try:
            tensors = open_checkpoint(path).tensors
            for key, value in tensors.items():
                assert (value.shape, value.dtype) == (tensors.shape(key), tensors.dtype(key))
            outcomes.add("read")
        except (ValueError, NotImplementedError) as error:
            assert type(error) in (ValueError, NotImplementedError), repr(error)
            assert str(path) in str(error) and "Remedy" in str(error)
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}
