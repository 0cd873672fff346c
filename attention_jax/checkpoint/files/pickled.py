"""Pickles of plain data and tensors, read without running anything.

Python's own unpickler calls what a file names. This one knows no modules: it follows the few
instructions that a state dict is made of, and a name that a file asks for is a word to compare.
"""

import dataclasses
import itertools
import math
import pathlib
import pickletools
from collections.abc import Callable, Iterator
from io import BufferedReader, BytesIO
from typing import Any

import ml_dtypes
import numpy as np

from attention_jax import checks
from attention_jax.checkpoint.files import refusals

# About thirty instructions make one tensor.
MOST_INSTRUCTIONS = 3_000_000
MOST_AXES = 64
MOST_ELEMENTS = 2**48

DTYPES = {
    "torch DoubleStorage": np.float64,
    "torch FloatStorage": np.float32,
    "torch HalfStorage": np.float16,
    "torch BFloat16Storage": ml_dtypes.bfloat16,
    "torch LongStorage": np.int64,
    "torch IntStorage": np.int32,
    "torch ShortStorage": np.int16,
    "torch CharStorage": np.int8,
    "torch ByteStorage": np.uint8,
    "torch BoolStorage": np.bool_,
}
ORDERED_DICT = "collections OrderedDict"
TENSOR = "torch._utils _rebuild_tensor_v2"
PARAMETER = "torch._utils _rebuild_parameter"
# What newer versions write for dtypes without a storage class, such as float8.
NEWER_TENSOR = "torch._utils _rebuild_tensor_v3"

CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
LITERALS = frozenset("BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE".split())


@dataclasses.dataclass(frozen=True)
class Storage:
    """A flat array in the file: its key, the dtype and the number of elements."""

    key: str
    dtype: np.dtype
    size: int


ReadPart = Callable[[Storage, int, int], bytes]
"""Reads bytes of a storage: where they start in it, and how many."""
Locate = Callable[[dict[str, Storage]], ReadPart]
"""Checks that storages are in a file, by their keys, and returns what reads them."""


@dataclasses.dataclass(frozen=True)
class View:
    """A tensor: the elements of a storage from `offset` on, with strides counted in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def span(self) -> int:
        """Number of elements from the first that it uses to the last one."""
        if not math.prod(self.shape):
            return 0
        steps = zip(self.shape, self.strides, strict=True)
        return 1 + sum((size - 1) * stride for size, stride in steps)


@dataclasses.dataclass(frozen=True)
class _Name:
    """A name that the file asks for: a module and what it takes from it."""

    text: str


def load(file: BufferedReader | BytesIO, path: pathlib.Path) -> Any:
    """Reads one pickle from where `file` stands; raises ValueError for any that is not plain.

    Dictionaries come as `dict`, tensors as `View`. Nothing that the pickle names is imported or
    called, and no value is hashed, compared or shown before its type is known.
    """
    machine = _Machine(path)
    try:
        for instruction, argument in _instructions(file, path):
            machine.follow(instruction, argument)
        return machine.pop()
    except (IndexError, KeyError) as error:
        raise machine.damaged("instructions that do not fit together") from error


def _instructions(file: BufferedReader | BytesIO, path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    try:
        for operation, argument, _ in itertools.islice(pickletools.genops(file), MOST_INSTRUCTIONS):
            if operation.name == "STOP":
                return
            yield operation.name, argument
    # What genops raises on damaged input is not one class.
    except Exception as error:
        raise refusals.damaged(path, "a whole pickle", error) from error
    raise refusals.damaged(path, "a state dict", f"more than {MOST_INSTRUCTIONS} instructions")


class _Machine:
    """The stack that a pickle's instructions work on."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def damaged(self, got: str) -> Exception:
        return refusals.damaged(self.path, "a whole pickle of tensors", got)

    def refused(self, got: str) -> Exception:
        return checks.refuse(
            ValueError, str(self.path), "a pickle of tensors and plain containers, which runs "
            "nothing", got, "save torch.save(model.state_dict(), path), or a safetensors file",
        )  # fmt: skip

    def unsupported(self, expected: str, got: str, remedy: str) -> Exception:
        return checks.refuse(NotImplementedError, str(self.path), expected, got, remedy)

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def follow(self, instruction: str, argument: Any) -> None:
        push = self.stack.append
        match instruction:
            case "PROTO" | "FRAME":
                pass
            case _ if instruction in CONSTANTS:
                push(CONSTANTS[instruction])
            case _ if instruction in LITERALS:
                push(argument)
            case "EMPTY_DICT":
                push({})
            case "EMPTY_LIST":
                push([])
            case "MARK":
                self.below.append(self.stack)
                self.stack = []
            case "TUPLE":
                items = self.pop_to_mark()
                self.stack.append(tuple(items))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self.pop() for _ in range(int(instruction[-1]))]
                push(tuple(reversed(items)))
            case "APPEND":
                self.extend([self.pop()])
            case "APPENDS":
                self.extend(self.pop_to_mark())
            case "SETITEM":
                value, key = self.pop(), self.pop()
                self.update([key, value])
            case "SETITEMS":
                self.update(self.pop_to_mark())
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                push(self.memo[argument])
            case "GLOBAL":
                push(self.name(argument))
            case "INST":
                raise self.refused(f"the global {argument.replace(' ', '.')}")
            case "STACK_GLOBAL":
                name, module = self.pop(), self.pop()
                if not isinstance(name, str) or not isinstance(module, str):
                    raise self.damaged("a name that is no string")
                push(self.name(f"{module} {name}"))
            case "REDUCE":
                arguments, function = self.pop(), self.pop()
                self.stack.append(self.built(function, arguments))
            case "BUILD":
                self.attributes(self.pop(), self.stack[-1])
            case "BINPERSID":
                self.stack.append(self.storage(self.pop()))
            case _:
                raise self.refused(f"the instruction {instruction}")

    def name(self, text: str) -> _Name:
        if text == NEWER_TENSOR:
            got = "a newer one, such as float8"
            raise self.unsupported("dtypes with a storage class", got, "save it as bfloat16")
        if text not in (ORDERED_DICT, TENSOR, PARAMETER, *DTYPES):
            raise self.refused(f"the global {text.replace(' ', '.')}")
        return _Name(text)

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise self.damaged("an element for what is no list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise self.damaged("an entry for what is no dictionary")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A tuple of tuples of tuples ... takes for ever to hash.
            if not isinstance(key, str | int):
                raise self.refused(f"a dictionary key of type {type(key).__name__}")
            if key in target:
                raise self.damaged(f"the key {key!r} twice")
            target[key] = value

    def attributes(self, state: Any, target: Any) -> None:
        """Drops what modules note about their version, beside the tensors."""
        plain = isinstance(target, dict) and isinstance(state, dict)
        if not plain or set(state) - {"_metadata"}:
            raise self.refused("attributes of an object")

    def built(self, function: Any, arguments: Any) -> Any:
        match function, arguments:
            case _Name(text=name), () if name == ORDERED_DICT:
                return {}
            case _Name(text=name), (Storage() as storage, offset, shape, strides, _, _) if (
                name == TENSOR
            ):
                return self.view(storage, offset, shape, strides)
            case _Name(text=name), (View() as tensor, _, _) if name == PARAMETER:
                return tensor
            case _Name(text=name), _:
                got = f"other arguments than a state dict's for {name.replace(' ', '.')}"
                raise self.refused(got)
        raise self.refused(f"a call of a {type(function).__name__}")

    def storage(self, identity: Any) -> Storage:
        match identity:
            case ("storage", _Name(text=name), str() as key, str(), int() as size, *rest) if (
                name in DTYPES and size >= 0 and rest in ([], [None])
            ):
                return Storage(key, np.dtype(DTYPES[name]), size)
        raise self.damaged("a reference to something else than a storage")

    def view(self, storage: Storage, offset: Any, shape: Any, strides: Any) -> View:
        lists = isinstance(shape, tuple) and isinstance(strides, tuple)
        if not lists or len(shape) != len(strides) or len(shape) > MOST_AXES:
            raise self.damaged("a tensor whose shape and strides do not fit together")
        if not all(type(number) is int and number >= 0 for number in (offset, *shape, *strides)):
            raise self.damaged("a tensor with a size, stride or offset that is no count")
        view = View(storage, offset, shape, strides)
        if offset + view.span > storage.size:
            raise self.damaged(f"a tensor beyond the {storage.size} elements of its storage")
        if math.prod(shape) > storage.size:
            expected = f"at most as many elements as its storage has, {storage.size}"
            got = f"an expanded tensor of shape {shape}"
            raise self.unsupported(expected, got, "save tensor.contiguous()")
        # NumPy counts an empty axis as if it had one element.
        if math.prod(size or 1 for size in shape) > MOST_ELEMENTS:
            raise self.damaged(f"a tensor of shape {shape}")
        return view
