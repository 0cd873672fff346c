"""From two matrices to one: exact, or refused by name."""

import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import tree
from attention_jax.positions import Position, QueryKeyPosition, check_position
from attention_jax.types import Array, Parameters


def merge(
    params: Parameters,
    *,
    qk: bool = True,
    ov: bool = False,
    position: Position | None = None,
    softcap: float | None = None,
) -> dict[str, dict[str, Array]]:
    """Multiplies W_q with W_k, and W_v with W_o, into one matrix per head each.

    `W_qk,h = W_q,h W_k,h^T` and `W_ov,h = W_v,h W_o,h`, exactly the same function. In homogeneous
    coordinates, with a bias as one more row of its matrix, the same products give the biases:
    `u_h = W_k,h b_q,h` and `c_h = b_v,h W_o,h`. What is constant along a row of scores,
    `x . W_q,h b_k,h + b_q,h . b_k,h`, cancels in the softmax and is kept only with a soft cap.

    Args:
      params: Parameters of one layer: `query` and `key`, `value` and `out`, with grouped heads too.
      qk: Whether to merge queries and keys.
      ov: Whether to merge values and outputs.
      position: The layer's position encoding. It leaves no trace in the parameters, so it must be
        said; rotary encodings are refused.
      softcap: The layer's soft cap; with biases, its merged form needs two more terms.

    Returns:
      A new tree, in float32 or wider: `qk: {kernel (D, H, E), bias (H, E)}` in place of `query` and
      `key`; `ov: {kernel (H, E, O), bias (H, O)}, out: {bias (O,)}` in place of `value` and `out`.
      With a soft cap and biases also `qk: {row_kernel (D, H), row_bias (H,)}`.

    Raises:
      NotImplementedError: A rotary encoding or QK-norm stands between W_q and W_k.
      ValueError: `params` is not one layer, is merged already, or nothing is asked for.
      TypeError: A parameter is not floating, or an argument has the wrong kind.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import attention_jax as aj
      >>> x = jax.random.normal(jax.random.key(0), (5, 8))
      >>> separate = aj.SeparateAttention(num_heads=2)
      >>> params = separate.init(jax.random.key(1), x)["params"]
      >>> merged = aj.MergedAttention(num_heads=2)
      >>> difference = separate.apply({"params": params}, x) - merged.apply(
      ...     {"params": merge(params)}, x)
      >>> bool(abs(difference).max() < 2e-6)
      True

    Paper: Elhage et al., A mathematical framework for transformer circuits (2021).
    """
    tree.check_layer(params)
    checks.check_bool("qk", qk)
    checks.check_bool("ov", ov)
    check_position(position)
    checks.check_softcap(softcap)
    if not (qk or ov):
        raise checks.refuse(
            ValueError, "qk, ov", "at least one of them True", "both False", "say what to merge"
        )
    merged = tree.wide(params)
    if qk:
        if "qk" in params:
            raise _already("qk")
        remedy = "keep W_q and W_k separate; merge(qk=False, ov=True) is exact"
        check_one_matrix(params, position, remedy)
        merged["qk"] = _merge_qk(merged.pop("query"), merged.pop("key"), softcap is not None)
    if ov:
        if "ov" in params:
            raise _already("ov")
        value, out = merged.pop("value"), merged.pop("out")
        merged["ov"] = _merge_ov(value, out["kernel"])
        if "bias" in out:
            merged["out"] = {"bias": out["bias"]}
    return merged


def check_one_matrix(params: Parameters, position: Position | None, remedy: str) -> None:
    """Raises NotImplementedError where scores are not a function of W_qk and the biases alone."""
    if any(name in params for name in tree.NORMS):
        raise checks.refuse(
            NotImplementedError,
            "params",
            "no QK-norm, with which scores depend on W_q and W_k apart",
            "query_ln and key_ln",
            remedy,
        )
    if isinstance(position, QueryKeyPosition):
        raise checks.refuse(
            NotImplementedError,
            "position",
            "no rotary encoding, with which W_q R W_k^T changes with the offset",
            type(position).__name__,
            remedy,
        )


def _already(name: str) -> Exception:
    return checks.refuse(
        ValueError, "params", f"no {name}", f"{name} already merged", f"pass {name}=False"
    )


def _merge_qk(query: Parameters, key: Parameters, row_terms: bool) -> dict[str, Array]:
    w_q, w_k = tree.homogeneous(query, axis=0), tree.homogeneous(key, axis=0)
    w_k = jnp.repeat(w_k, w_q.shape[1] // w_k.shape[1], axis=1)
    product = jnp.einsum("DHK,EHK->DHE", w_q, w_k, precision="highest")
    merged = {"kernel": product[:-1, :, :-1]}
    if "bias" in query or "bias" in key:
        merged["bias"] = product[-1, :, :-1]
        if row_terms:
            merged["row_kernel"] = product[:-1, :, -1]
            merged["row_bias"] = product[-1, :, -1]
    return merged


def _merge_ov(value: Parameters, w_o: Array) -> dict[str, Array]:
    w_v = tree.homogeneous(value, axis=0)
    w_v = jnp.repeat(w_v, w_o.shape[0] // w_v.shape[1], axis=1)
    product = jnp.einsum("EHV,HVO->HEO", w_v, w_o, precision="highest")
    merged = {"kernel": product[:, :-1]}
    if "bias" in value:
        merged["bias"] = product[:, -1]
    return merged
