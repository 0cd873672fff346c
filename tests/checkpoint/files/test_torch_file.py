"""PyTorch files read without PyTorch: values, and that nothing in a file is run."""

import os
import pathlib
import pickle
import time
import zipfile

import ml_dtypes
import numpy as np
import pytest

from attention_jax.checkpoint.files import torch_file, torch_legacy

DATA = pathlib.Path(__file__).parents[1] / "data"


def numbers(*shape, dtype=np.float32):
    return (np.arange(np.prod(shape), dtype=np.float32) - 3).reshape(shape).astype(dtype)


WHOLE = numbers(5, 7)
EXPECTED = {
    "weight": numbers(2, 3),
    "bias": numbers(2),
    "parameter": numbers(3),
    "float64": numbers(2, 5, dtype=np.float64),
    "float16": numbers(2, 5, dtype=np.float16),
    "bfloat16": numbers(2, 5, dtype=ml_dtypes.bfloat16),
    "int64": numbers(2, 5, dtype=np.int64),
    "int32": numbers(2, 5, dtype=np.int32),
    "int16": numbers(2, 5, dtype=np.int16),
    "int8": numbers(2, 5, dtype=np.int8),
    "uint8": np.abs(numbers(11)).astype(np.uint8),
    "bool": numbers(2, 5) > 0,
    "scalar": np.array(2.5, np.float32),
    "empty": np.zeros((0, 3), np.float32),
    "whole": WHOLE,
    "tied": WHOLE,
    "transposed": WHOLE.T,
    "part": WHOLE[1:4, 2:6],
    "steps": WHOLE[::2, 1::3].T,
    "last": WHOLE[4, 6],
}


def assert_equal(stored, expected):
    assert list(stored) == list(expected)
    for name, value in expected.items():
        read = stored[name].read()
        assert (read.shape, read.dtype) == (value.shape, value.dtype), name
        assert (stored[name].shape, stored[name].dtype) == (value.shape, value.dtype), name
        assert read.flags.c_contiguous and read.tobytes() == value.tobytes(), name


@pytest.mark.parametrize("name", ["zip.pt", "legacy.pt"])
def test_every_dtype_view_and_shared_storage(name):
    # The views differ from the start of their storage, so that none is read as if it were whole.
    assert not np.array_equal(EXPECTED["transposed"].ravel(), WHOLE.ravel())
    assert (DATA / "zip.pt").read_bytes()[:2] == b"PK" != (DATA / "legacy.pt").read_bytes()[:2]
    assert_equal(torch_file.read(DATA / name), EXPECTED)


def test_newer_pickle_protocol():
    assert b"\x80\x04\x95" in (DATA / "protocol4.pt").read_bytes()
    assert_equal(torch_file.read(DATA / "protocol4.pt"), {"weight": numbers(2, 3)})


@pytest.mark.parametrize(
    ("name", "error", "pieces"),
    [
        ("nested.pt", ValueError, ["'epoch', 'state_dict'", "flat", "torch.save("]),
        ("module.pt", ValueError, ["torch.nn.modules.linear.Linear", "state_dict"]),
        ("script.pt", NotImplementedError, ["TorchScript", "state_dict"]),
        ("float8.pt", NotImplementedError, ["float8", "bfloat16"]),
        ("expanded.pt", NotImplementedError, ["(1000,)", "contiguous"]),
    ],
)
def test_other_contents_are_refused(name, error, pieces):
    with pytest.raises(error) as raised:
        torch_file.read(DATA / name)
    assert raised.type is error
    assert not [piece for piece in (name, "Remedy", *pieces) if piece not in str(raised.value)]


def literal(value):
    return pickle.dumps(value, protocol=2)[2:-1]


def name(module, attribute):
    return f"c{module}\n{attribute}\n".encode()


def storage(key="0", size=6, kind="FloatStorage", where="cpu"):
    pieces = (literal("storage"), name("torch", kind), *map(literal, (key, where, size)))
    return b"(" + b"".join(pieces) + b"tQ"


def tensor(offset=0, shape=(2, 3), strides=(3, 1), stored=None):
    view = b"".join(map(literal, (offset, shape, strides, False)))
    arguments = b"(" + (stored or storage()) + view + b"}t"
    return name("torch._utils", "_rebuild_tensor_v2") + arguments + b"R"


def state(*tensors):
    entries = (literal(f"weight{i}") + code + b"s" for i, code in enumerate(tensors))
    return b"\x80\x02}" + b"".join(entries) + b"."


def write(path, pickled, *, order=b"little", compression=zipfile.ZIP_STORED, extra=(), size=6):
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/byteorder", order)
        archive.writestr("a/data/0", numbers(size).tobytes())
        for entry in extra:
            archive.writestr(entry, b"")
    return path


def refused(path, error=ValueError):
    start = time.perf_counter()
    with pytest.raises(error) as raised:
        [stored.read() for stored in torch_file.read(path).values()]
    assert raised.type is error
    assert time.perf_counter() - start < 10.0
    assert str(path) in str(raised.value) and "Remedy" in str(raised.value)
    return str(raised.value)


def test_a_pickle_by_hand(tmp_path):
    """The control of all forged ones below."""
    pickled = state(tensor(), tensor(1, (2, 2), (3, 1)), tensor(6, (0, 3), (3, 1)))
    stored = torch_file.read(write(tmp_path / "good.pt", pickled))
    assert_equal(
        stored,
        {
            "weight0": numbers(2, 3),
            "weight1": numbers(2, 3)[:, 1:],
            "weight2": np.zeros((0, 3), np.float32),
        },
    )


class Call:
    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("function", [os.system, eval])
def test_a_call_is_refused_by_name_and_not_made(tmp_path, function, legacy, protocol):
    sentinel = tmp_path / "sentinel"
    code = f"touch {sentinel}" if function is os.system else f"open({str(sentinel)!r}, 'w').close()"
    attack = pickle.dumps(Call(function, code), protocol=protocol)
    path = tmp_path / "attack.pt"
    path.write_bytes(attack) if legacy else write(path, attack)
    message = refused(path)
    module = function.__module__ if protocol > 2 else {eval: "__builtin__"}.get(function, os.name)
    assert f"the global {module}.{function.__name__}" in message
    assert not sentinel.exists()
    pickle.loads(attack)
    assert sentinel.exists()


ORDERED = name("collections", "OrderedDict")
BOMB = b"\x80\x02)q\x00" + b"h\x00h\x00\x86q\x00" * 60
FORGED = {
    "dotted name": (
        b"\x80\x04" + b"\x8c\x0bcollections\x8c\x12OrderedDict.update\x93.",
        "collections.OrderedDict.update",
    ),
    "no string as a name": (b"\x80\x04]]\x93.", "no string"),
    "class on the stack": (b"ios\nsystem\n.", "os.system"),
    "object of a class": (b"(" + ORDERED + b"o.", "instruction OBJ"),
    "new object": (b"\x80\x02" + ORDERED + b")\x81.", "instruction NEWOBJ"),
    "extension": (b"\x80\x02\x82\x01.", "instruction EXT1"),
    "text reference": (b"P0\n.", "instruction PERSID"),
    "attributes of a class": (b"\x80\x02" + ORDERED + b"}b.", "attributes"),
    "methods as attributes": (
        b"\x80\x02}}" + literal("items") + ORDERED + b"sb.", "attributes",
    ),
    "call of a string": (b"\x80\x02" + literal("print") + b")R.", "call of a str"),
    "call of a container": (b"\x80\x02})R.", "call of a dict"),
    "call of a storage class": (
        b"\x80\x02" + name("torch", "FloatStorage") + b")R.", "torch.FloatStorage",
    ),
    "ordered dictionary of pairs": (b"\x80\x02" + ORDERED + b"]\x85R.", "OrderedDict"),
    "reference to a module": (b"\x80\x02" + literal(("module", "x")) + b"Q.", "storage"),
    "negative storage": (state(tensor(stored=storage(size=-1))), "storage"),
    "key that is no string": (state(tensor(stored=storage(key=0))), "storage"),
    "conjugate": (
        state(tensor()).replace(b"}tR", b"}}tR"), "_rebuild_tensor_v2",
    ),
    "tuple bomb as a key": (BOMB + b"}h\x00Ns.", "key of type tuple"),
    "tuple bomb as the root": (BOMB + b".", "tuple"),
    "deep nesting": (b"\x80\x02)" + b"\x85" * 50_000 + b".", "tuple"),
    "distant memo": (b"\x80\x02}r\xff\xff\xff\xff" + b"j\xfe\xff\xff\xff.", "fit together"),
    "empty stack": (b"\x80\x02s.", "fit together"),
    "entry of a list": (b"\x80\x02]NNs.", "no dictionary"),
    "element of a dictionary": (b"\x80\x02}Na.", "no list"),
    "no end": (b"\x80\x02}", "whole pickle"),
    "long string": (b"\x80\x02X\xff\xff\xff\xffa.", "whole pickle"),
    "very long bytes": (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fa.", "whole pickle"),
    "key twice": (state(tensor(), tensor()).replace(b"weight1", b"weight0"), "'weight0' twice"),
    "list as the root": (b"\x80\x02].", "list"),
    "tensor as the root": (b"\x80\x02" + tensor() + b".", "one tensor"),
    "number as a name": (b"\x80\x02}K\x01" + tensor() + b"s.", "under 1"),
    "offset beyond": (state(tensor(1)), "6 elements"),
    "strides beyond": (state(tensor(0, (2, 3), (4, 1))), "6 elements"),
    "far beyond": (state(tensor(0, (2**40, 2**40), (1, 1))), "6 elements"),
    "negative stride": (state(tensor(5, (2, 3), (-3, 1))), "no count"),
    "negative offset": (state(tensor(-1)), "no count"),
    "negative size": (state(tensor(0, (-2, 3))), "no count"),
    "bool as a size": (state(tensor(0, (True, 3))), "no count"),
    "list as a shape": (state(tensor(0, [2, 3])), "shape and strides"),
    "other rank": (state(tensor(0, (6,))), "shape and strides"),
    "65 axes": (state(tensor(0, (1,) * 65, (1,) * 65)), "shape and strides"),
    "empty and huge": (state(tensor(0, (0, 2**63), (1, 1))), "shape (0, 9223372036854775808)"),
    "longer storage": (state(tensor(stored=storage(size=7))), "data/0"),
    "huge storage": (state(tensor(stored=storage(size=2**60))), "data/0"),
    "wider storage": (state(tensor(stored=storage(kind="DoubleStorage"))), "data/0"),
    "no storage": (state(tensor(stored=storage(key="1"))), "data/1"),
    "other file": (state(tensor(stored=storage(key="../byteorder"))), "data/../byteorder"),
    "two dtypes": (
        state(tensor(), tensor(stored=storage(kind="IntStorage"))), "two dtypes",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("pickled", "piece"), FORGED.values(), ids=FORGED)
def test_a_forged_pickle_is_refused(tmp_path, pickled, piece):
    assert piece in refused(write(tmp_path / "forged.pt", pickled))


def test_one_element_axes_may_have_any_stride(tmp_path):
    path = write(tmp_path / "good.pt", state(tensor(2, (1, 3), (2**70, 1))))
    assert_equal(torch_file.read(path), {"weight0": numbers(6)[None, 2:5]})


def test_a_forged_zip_file_is_refused(tmp_path):
    good = state(tensor())
    path = tmp_path / "forged.pt"
    bomb = write(path, good, compression=zipfile.ZIP_DEFLATED, size=10**6)
    assert path.stat().st_size < 4 * 10**6
    assert "compressed" in refused(bomb)
    assert "little" in refused(write(path, good, order=b"big"), NotImplementedError)
    assert "data.pkl" in refused(write(path, good, extra=["b/data.pkl"]))
    code = write(path, good, extra=["a/constants.pkl"])
    assert "TorchScript" in refused(code, NotImplementedError)
    with pytest.warns(UserWarning, match="Duplicate"):
        write(path, good, extra=["a/data/0"])
    assert "twice" in refused(path)
    # A flipped bit in a weight: only the zip format has checksums.
    data = bytearray(write(path, good).read_bytes())
    data[data.index(numbers(6).tobytes())] ^= 1
    path.write_bytes(data)
    assert "CRC" in refused(path)


def legacy(size, count, key="0"):
    """Returns a legacy file whose pickle tells `size` and whose storage tells `count`."""
    plain = (torch_legacy.MAGIC, torch_legacy.PROTOCOL, {"little_endian": True})
    pickles = [b"\x80\x02" + literal(value) + b"." for value in plain]
    pickles += [state(tensor(stored=storage(size=size))), b"\x80\x02" + literal([key]) + b"."]
    return b"".join(pickles) + count.to_bytes(8, "little") + numbers(6).tobytes()


def test_a_legacy_file_by_hand(tmp_path):
    """The control of the forged ones below."""
    path = tmp_path / "good.pt"
    path.write_bytes(legacy(6, 6))
    assert_equal(torch_file.read(path), {"weight0": numbers(2, 3)})


def test_a_forged_legacy_file_is_refused(tmp_path):
    path = tmp_path / "forged.pt"
    good = (DATA / "legacy.pt").read_bytes()
    for data, piece in (
        (b"version https://git-lfs.github.com/spec/v1\n", "whole pickle"),
        (b"", "whole pickle"),
        (literal(1) + b".", "magic number"),
        (good.replace(b"M\xe9\x03.", b"M\xea\x03."), "protocol 1001"),
        (good + b"\0", f"{len(good) + 1} bytes"),
        (good[:-1], "the end of the file"),
        (legacy(2**60, 2**60), "elements of storage 0"),
        (legacy(2**70, 6), "elements of storage 0"),
        (legacy(6, 7), "6 elements of storage 0"),
        (legacy(6, 6, key="1"), "other storages"),
    ):
        path.write_bytes(data)
        assert piece in refused(path)
    path.write_bytes(good.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"))
    assert "byte order" in refused(path, NotImplementedError)
