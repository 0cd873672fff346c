"""safetensors files: values of every dtype, and what is refused."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from attention_jax.checkpoint.files import safetensors_file


def refused(path, error=ValueError):
    with pytest.raises(error) as raised:
        safetensors_file.read(path)
    assert raised.type is error
    assert str(path) in str(raised.value) and "Remedy" in str(raised.value)
    return str(raised.value)


def test_every_dtype(tmp_path):
    path = tmp_path / "x.safetensors"
    dtypes = {np.dtype(dtype) for dtype in safetensors_file.DTYPES.values()}
    expected = {dtype.name: np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes}
    expected |= {"scalar": np.array(2.5, np.float32), "empty": np.zeros((0, 3), np.float16)}
    expected["thirds"] = (np.arange(5) / 3).astype(ml_dtypes.bfloat16)
    # Another 16-bit reading of the same bits gives other numbers.
    assert not np.array_equal(expected["thirds"].view(np.float16), expected["thirds"])
    save_file(expected, path)
    stored = safetensors_file.read(path)
    assert set(stored) == set(expected)
    for name, value in expected.items():
        read = stored[name].read()
        assert (read.dtype, read.shape) == (value.dtype, value.shape), name
        assert (stored[name].dtype, stored[name].shape) == (value.dtype, value.shape), name
        assert read.tobytes() == value.tobytes(), name


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "complex64"])
def test_other_dtypes_are_refused(tmp_path, dtype):
    path = tmp_path / "x.safetensors"
    save_file({"weight": np.ones(3, dtype)}, path)
    code = {"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64"}[dtype]
    message = refused(path, NotImplementedError)
    assert f"{code} in tensor 'weight'" in message


def raw(*tensors, size=None, data=24):
    header = {
        name: dict(dtype="F32", shape=shape, data_offsets=ends) for name, shape, ends in tensors
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + b"\0" * data


GOOD = ("w", [2, 3], [0, 24])
FORGED = {
    "empty": b"",
    "header beyond the end": raw(GOOD, size=10**15),
    "header cut": raw(GOOD, size=20),
    "no header": struct.pack("<Q", 4) + b"null",
    "tensor beyond the end": raw(GOOD, data=23),
    "overlap": raw(GOOD, ("v", [3], [12, 24])),
    "gap": raw(GOOD, ("v", [3], [28, 40]), data=40),
    "other size": raw(("w", [2, 4], [0, 24])),
    "overflow": raw(("w", [2**40, 2**40], [0, 24])),
    "negative": raw(("w", [-2, 3], [0, 24])),
    "too much": raw(GOOD, data=28),
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED)
def test_a_forged_file_is_refused(tmp_path, data):
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw(GOOD))
    assert safetensors_file.read(path)["w"].read().shape == (2, 3)
    path.write_bytes(data)
    refused(path)
