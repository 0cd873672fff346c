"""GGUF files: dequantised values by hand, metadata, and what is refused."""

import struct

import gguf
import numpy as np
import pytest

from attention_jax.checkpoint.files import gguf_file

KINDS = gguf.GGMLQuantizationType
FLOATS = np.arange(30, dtype=np.float32).reshape(3, 1, 2, 5) - 7
METADATA = {
    "general.architecture": "llama",
    "a.bool": True,
    "a.float": 0.5,
    "a.integer": -3,
    "a.long": 2**40,
    "a.string": "ä",
    "list.string": ["a", "", "ccc"],
    "list.integer": [3, 1, 2],
    "list.bool": [False, True],
}


def half(number):
    return np.float16(number).tobytes()


def blocks():
    """Returns the stored bytes of a tensor for each type, and the values that they mean."""
    small = np.arange(32) % 16
    packed = (small[:16] | small[16:] << 4).astype(np.uint8)
    signed = np.arange(32) - 16
    rows = {
        KINDS.Q4_0: (half(0.5) + packed.tobytes(), 0.5 * (small - 8)),
        KINDS.Q4_1: (half(0.5) + half(3) + packed.tobytes(), 0.5 * small + 3),
        KINDS.Q8_0: (half(0.25) + signed.astype(np.int8).tobytes(), 0.25 * signed),
    }
    return {
        kind: (np.frombuffer(data, np.uint8)[None].repeat(2, axis=0), np.stack([values, values]))
        for kind, (data, values) in rows.items()
    }


def write(path, *, metadata=None, tensors=(), endianess=gguf.GGUFEndian.LITTLE):
    """Writes a file by the library's own writer; `tensors` are (name, data, kind)."""
    writer = gguf.GGUFWriter(path, "llama", endianess=endianess)
    for key, value in (metadata or {}).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_int64(key, value) if value < 0 else writer.add_uint64(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refused(path, error=ValueError):
    with pytest.raises(error) as raised:
        gguf_file.read(path)
    assert raised.type is error
    assert str(path) in str(raised.value) and "Remedy" in str(raised.value)
    return str(raised.value)


def test_values_shapes_and_metadata(tmp_path):
    bfloat = (FLOATS.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    expected = {
        "float32": FLOATS,
        "vector": FLOATS[0, 0, 0],
        "float16": FLOATS,
        "bfloat16": FLOATS,
    }
    tensors = [
        ("float32", FLOATS, None),
        ("vector", FLOATS[0, 0, 0], None),
        ("float16", FLOATS.astype(np.float16), None),
        ("bfloat16", bfloat, KINDS.BF16),
    ]
    for kind, (data, values) in blocks().items():
        tensors.append((kind.name, data, kind))
        expected[kind.name] = values
    path = write(tmp_path / "x.gguf", metadata=METADATA | {"a.float": 0.5}, tensors=tensors)
    metadata, stored = gguf_file.read(path)
    assert {key: metadata[key] for key in METADATA} == METADATA
    assert {key: type(metadata[key]) for key in METADATA} == {
        key: type(value) for key, value in METADATA.items()
    }
    assert list(stored) == list(expected)
    for name, values in expected.items():
        read = stored[name].read()
        assert (read.dtype, read.shape) == (np.float32, values.shape), name
        assert (stored[name].dtype, stored[name].shape) == (read.dtype, read.shape), name
        np.testing.assert_array_equal(read, values, err_msg=name)


def raw(*, tensors=b"", count=0, settings=b"", keys=0, version=3, data=b"\0" * 256):
    """Returns a file by hand, for what the library's writer does not write."""
    head = b"GGUF" + struct.pack("<IQQ", version, count, keys) + settings + tensors
    return head + b"\0" * (-len(head) % 32) + data


def info(name="w", shape=(32,), kind=0, start=0):
    sizes = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, start)
    return struct.pack("<Q", len(name)) + name.encode() + sizes


def setting(key, kind, value):
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


FORGED = {
    "version": (raw(version=1), NotImplementedError, "version 1"),
    "unknown type": (raw(tensors=info(kind=99), count=1), NotImplementedError, "'w': 99"),
    "integers": (raw(tensors=info(kind=26), count=1), NotImplementedError, "I32"),
    "intermediate type": (
        raw(tensors=info(kind=15, shape=(256,)), count=1), NotImplementedError, "'w'",
    ),
    "one of several": (
        raw(settings=setting(b"split.count", 2, b"\3\0"), keys=1), NotImplementedError, "3 parts",
    ),
    "row of half a block": (
        raw(tensors=info(kind=8, shape=(48, 2)), count=1), ValueError, "shape (2, 48)",
    ),
    "no elements": (raw(tensors=info(shape=(4, 0)), count=1), ValueError, "shape (0, 4)"),
    "tensor count": (raw(count=2**60, data=b""), ValueError, "bytes"),
    "setting count": (raw(keys=2**60, data=b""), ValueError, "bytes"),
    "list length": (
        raw(settings=setting(b"a", 9, struct.pack("<IQ", 0, 2**60)), keys=1), ValueError,
        str(2**60),
    ),
    "list of strings": (
        raw(settings=setting(b"a", 9, struct.pack("<IQ", 8, 2**60)), keys=1), ValueError, "bytes",
    ),
    "list of lists": (
        raw(settings=setting(b"a", 9, struct.pack("<IQ", 9, 1)), keys=1), ValueError, "type 9",
    ),
    "unknown setting": (raw(settings=setting(b"a", 13, b""), keys=1), ValueError, "type 13"),
    "key twice": (raw(settings=setting(b"a", 0, b"\1") * 2, keys=2), ValueError, "'a' twice"),
    "not UTF-8": (raw(settings=setting(b"\xff", 0, b"\1"), keys=1), ValueError, "UTF-8"),
    "alignment": (
        raw(settings=setting(b"general.alignment", 4, b"\x30\0\0\0"), keys=1), ValueError, "48",
    ),
    "name twice": (raw(tensors=info() + info(start=128), count=2), ValueError, "'w' twice"),
    "five axes": (raw(tensors=info(shape=(1,) * 5), count=1), ValueError, "5 axes"),
    "overlap": (raw(tensors=info() + info("v", start=64), count=2), ValueError, "'v'"),
    "gap": (raw(tensors=info() + info("v", start=160), count=2), ValueError, "'v'"),
    "not aligned": (raw(tensors=info(start=4), count=1), ValueError, "'w'"),
    "beyond the end": (raw(tensors=info(shape=(65,)), count=1), ValueError, "bytes"),
    "far beyond": (raw(tensors=info(shape=(2**63, 2**63)), count=1), ValueError, "bytes"),
    "other magic": (b"GGML" + raw()[4:], ValueError, "b'GGUF'"),
    "empty": (b"", ValueError, "b'GGUF'"),
    "cut after the magic": (b"GGUF", ValueError, "0 bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "error", "piece"), FORGED.values(), ids=FORGED)
def test_a_forged_file_is_refused(tmp_path, data, error, piece):
    path = tmp_path / "forged.gguf"
    path.write_bytes(data)
    assert piece in refused(path, error)


def test_a_file_by_hand(tmp_path):
    """The control of all forged ones above."""
    path = tmp_path / "good.gguf"
    values = np.arange(64, dtype=np.float32)
    path.write_bytes(
        raw(
            tensors=info("scalar", ()) + info("w", (4, 8), start=32), count=2, version=2,
            settings=setting(b"a", 9, struct.pack("<IQ2B", 0, 2, 5, 6)), keys=1,
            data=values.tobytes(),
        )
    )  # fmt: skip
    metadata, stored = gguf_file.read(path)
    assert metadata == {"a": [5, 6]}
    np.testing.assert_array_equal(stored["scalar"].read(), np.float32(0))
    np.testing.assert_array_equal(stored["w"].read(), values[8:40].reshape(8, 4))


def test_big_endian_is_refused(tmp_path):
    tensors = [("w", FLOATS, None)]
    path = write(tmp_path / "big.gguf", tensors=tensors, endianess=gguf.GGUFEndian.BIG)
    assert "big-endian" in refused(path, NotImplementedError)
