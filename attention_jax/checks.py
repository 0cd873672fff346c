"""Checks at the public boundary, all with one form of message."""

import numbers
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LARGEST = float(np.finfo(np.float32).max)


def message(argument: str, expected: object, got: object, remedy: str) -> str:
    """Returns the one form that every message of the library has."""
    return f"{argument}: expected {expected}, got {got}. Remedy: {remedy}."


def refuse(
    error: type[Exception], argument: str, expected: object, got: object, remedy: str
) -> Exception:
    """Returns an `error` to be raised, with the message of `message`."""
    return error(message(argument, expected, got, remedy))


def is_array(x: Any) -> bool:
    """Tells whether `x` is a JAX array (traced or not) or a NumPy array or scalar."""
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def check_floating(argument: str, x: Any) -> None:
    """Raises TypeError unless `x` is an array of real floating-point numbers."""
    if not is_array(x):
        raise refuse(
            TypeError, argument, "an array", type(x).__name__, "convert it with jnp.asarray"
        )
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype.itemsize < 2:
        raise refuse(
            TypeError,
            argument,
            "a floating dtype of 16 bits or more",
            x.dtype,
            "cast it with .astype(jnp.float32)",
        )


def signed(x: Any) -> jax.Array:
    """Returns integers as signed ones of at least 32 bits, whose differences cannot wrap."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.integer):
        return x
    narrow = jnp.issubdtype(x.dtype, jnp.unsignedinteger) or x.dtype.itemsize < 4
    return x.astype(jnp.int32) if narrow else x


def check_int32(argument: str, x: Any) -> None:
    """Raises ValueError where JAX would silently cut known integers down to 32 bits."""
    if isinstance(x, jax.Array) or jax.dtypes.canonicalize_dtype(np.int64) == np.int64:
        return
    limits = np.iinfo(np.int32)
    if np.any(np.asarray(x) > limits.max) or np.any(np.asarray(x) < limits.min):
        raise refuse(
            ValueError, argument, "numbers of 32 bits", f"up to {np.max(x)}", "enable x64 in JAX"
        )


def check_positive_int(argument: str, value: Any) -> None:
    """Raises unless `value` is an integer of at least one (bool is not an integer here)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise refuse(
            TypeError, argument, "an integer", f"{value!r}", "pass a Python int of at least 1"
        )
    if value < 1:
        raise refuse(ValueError, argument, "at least 1", value, "pass a positive size")
    check_int32(argument, value)


def check_bool(argument: str, value: Any) -> None:
    """Raises TypeError unless `value` is a bool; the string "False" would count as true."""
    if not isinstance(value, bool | np.bool_):
        raise refuse(TypeError, argument, "True or False", f"{value!r}", "pass a Python bool")


def check_choice(argument: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raises ValueError unless `value` is one of `choices`."""
    if value not in choices:
        expected = "one of " + ", ".join(map(repr, choices))
        raise refuse(ValueError, argument, expected, f"{value!r}", "choose one of these names")


def check_heads(num_heads: Any, num_kv_heads: Any) -> None:
    """Raises unless `num_kv_heads` is a positive divisor of `num_heads`."""
    check_positive_int("num_heads", num_heads)
    check_positive_int("num_kv_heads", num_kv_heads)
    if num_heads % num_kv_heads:
        raise refuse(
            ValueError,
            "num_kv_heads",
            f"a divisor of num_heads={num_heads}",
            num_kv_heads,
            "choose head counts with num_heads % num_kv_heads == 0",
        )


def check_real(argument: str, value: Any) -> None:
    """Raises TypeError unless `value` is a real Python number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise refuse(TypeError, argument, "a real Python number", f"{value!r}", "pass a float")


def check_dropout_rate(rate: Any) -> None:
    """Raises unless `rate` is a real number in [0, 1)."""
    check_real("dropout_rate", rate)
    if not 0.0 <= rate < 1.0:
        raise refuse(
            ValueError, "dropout_rate", "a number in [0, 1)", rate, "0.0 switches dropout off"
        )


def check_softcap(softcap: Any) -> None:
    """Raises unless `softcap` is None or a positive real number."""
    if softcap is None:
        return
    check_real("softcap", softcap)
    if not 0.0 < softcap <= LARGEST:
        raise refuse(
            ValueError, "softcap", "a positive finite number", softcap, "None switches it off"
        )


def check_broadcastable(argument: str, shape: tuple[int, ...], full: tuple[int, ...]) -> None:
    """Raises ValueError unless `shape` broadcasts to `full` = `[..., H, T, S]`, axis by axis."""
    expected = f"a shape that broadcasts to [..., H, T, S] = {full}"
    batched = len(full) > 3
    least = 4 if batched else 2
    if len(shape) < least:
        raise refuse(
            ValueError,
            argument,
            f"at least {least} axes, {expected}",
            f"shape {shape}, which is ambiguous",
            "insert the missing axes, for example x[:, None] for the heads or x[None, None] for "
            "batch and heads",
        )
    fits = len(shape) <= len(full) and all(
        size in (1, target) for size, target in zip(shape[::-1], full[::-1], strict=False)
    )
    if not fits:
        raise refuse(
            ValueError,
            argument,
            expected,
            f"shape {shape}",
            "give each axis its full size or size 1, batch and heads before lengths",
        )
