"""What is refused at the public boundary: the class, and what the message names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax as aj

Q = jnp.ones((2, 3, 4, 6))
K = jnp.ones((2, 5, 2, 6))
X = jnp.ones((2, 3, 8))
Y = jnp.ones((2, 5, 6))
KEY = jax.random.key(0)


def attend(query=Q, key=K, value=K, **settings):
    return lambda: aj.attend(query, key, value, **settings)


def separate(*inputs, num_heads=4, mask=None, bias=None, **settings):
    def call():
        module = aj.SeparateAttention(num_heads=num_heads, **settings)
        return module.init_with_output(KEY, *(inputs or (X,)), mask=mask, bias=bias)

    return call


def merged(*inputs, num_heads=4, **settings):
    def call():
        module = aj.MergedAttention(num_heads=num_heads, **settings)
        return module.init_with_output(KEY, *(inputs or (X,)))

    return call


def raw(*inputs, **settings):
    return lambda: aj.RawAttention(**settings).apply({}, *inputs)


def other_width(cls, **settings):
    def call():
        module = cls(4, 2, **settings)
        variables = module.init(KEY, X, Y)
        return module.apply(variables, X, jnp.ones((2, 5, 7)))

    return call


TABLE = {
    # attend: arrays
    "rank 2": (attend(query=Q[0, 0]), ValueError, ["query", "T, H, K", "(4, 6)", "Remedy"]),
    "rank 1 key": (attend(key=K[0, 0, 0]), ValueError, ["key", "S, G, K", "(6,)"]),
    "list": (attend(query=[[[1.0]]]), TypeError, ["query", "array", "list", "asarray"]),
    "integers": (attend(query=Q.astype(int)), TypeError, ["query", "floating", "int32", "astype"]),
    "complex": (attend(key=K.astype(complex)), TypeError, ["key", "floating", "complex64"]),
    "booleans": (attend(value=K > 0), TypeError, ["value", "floating", "bool"]),
    "mixed 16 bits": (
        attend(Q.astype(jnp.float16), K.astype(jnp.bfloat16), K.astype(jnp.float16)),
        TypeError, ["key", "float16", "bfloat16", "cast"],
    ),
    "mixed 32 and 16": (
        attend(value=K.astype(jnp.bfloat16)), TypeError, ["value", "float32", "bfloat16"],
    ),
    "width": (attend(key=jnp.ones((2, 5, 2, 7))), ValueError, ["key", "K=6", "7", "-1"]),
    "length": (attend(value=K[:, :4]), ValueError, ["value", "S=5", "4", "(2, 4, 2, 6)"]),
    "batch": (attend(key=K[:1]), ValueError, ["key", "(2,)", "(1, 5, 2, 6)", "broadcast_to"]),
    "batch rank": (attend(key=K[0]), ValueError, ["key", "batch", "broadcast_to"]),
    "heads": (attend(key=jnp.ones((2, 5, 3, 6))), ValueError, ["key", "H=4", "3 heads", "swap"]),
    "more kv heads": (attend(key=jnp.ones((2, 5, 8, 6))), ValueError, ["key", "H=4", "8 heads"]),
    "no heads": (attend(value=K[:, :, :0]), ValueError, ["value", "empty", "(2, 5, 0, 6)"]),
    "no keys": (attend(key=K[:, :0], value=K[:, :0]), ValueError, ["key", "empty"]),
    "no channels": (attend(query=Q[..., :0]), ValueError, ["query", "empty"]),
    # attend: settings
    "integer mask": (
        attend(mask=np.ones((2, 4, 3, 5), int)), TypeError, ["mask", "booleans", "int64", "bias"],
    ),
    "float mask": (attend(mask=jnp.ones((2, 4, 3, 5))), TypeError, ["mask", "float32", "!= 0"]),
    "list mask": (attend(mask=[[True]]), TypeError, ["mask", "list", "aj.causal()"]),
    "function as mask": (attend(mask=aj.causal), TypeError, ["mask", "function", "aj.causal()"]),
    "mask size": (
        attend(mask=np.ones((2, 4, 5, 3), bool)), ValueError,
        ["mask", "H, T, S", "(2, 4, 3, 5)", "(2, 4, 5, 3)"],
    ),
    "kv heads on the mask": (
        attend(mask=np.ones((2, 2, 3, 5), bool)), ValueError, ["mask", "(2, 4, 3, 5)"],
    ),
    "2-D mask": (attend(mask=np.ones((3, 5), bool)), ValueError, ["mask", "ambiguous", "None"]),
    "lengths": (
        attend(mask=aj.padding(np.ones(3, int))), ValueError, ["mask", "(2, 4, 3, 5)"],
    ),
    "boolean bias": (
        attend(bias=np.ones((2, 4, 3, 5), bool)), TypeError, ["bias", "floats", "mask"],
    ),
    "integer bias": (attend(bias=jnp.ones((2, 4, 3, 5), int)), TypeError, ["bias", "int32"]),
    "number as bias": (attend(bias=1.0), TypeError, ["bias", "array", "float"]),
    "bias size": (attend(bias=jnp.ones((2, 4, 3, 4))), ValueError, ["bias", "(2, 4, 3, 5)"]),
    "negative rate": (attend(dropout_rate=-0.1), ValueError, ["dropout_rate", "[0, 1)", "-0.1"]),
    "rate 1": (attend(dropout_rate=1.0, dropout_key=KEY), ValueError, ["dropout_rate", "1.0"]),
    "rate NaN": (attend(dropout_rate=float("nan")), ValueError, ["dropout_rate", "nan"]),
    "rate string": (attend(dropout_rate="0.1"), TypeError, ["dropout_rate", "'0.1'"]),
    "rate bool": (attend(dropout_rate=True), TypeError, ["dropout_rate", "True"]),
    "rate None": (attend(dropout_rate=None), TypeError, ["dropout_rate", "None"]),
    "no key": (attend(dropout_rate=0.5), ValueError, ["dropout_key", "dropout_rate=0.5", "None"]),
    "unknown implementation": (
        attend(implementation="flash"), ValueError, ["implementation", "'dense'", "'flash'"],
    ),
    "blockwise": (
        attend(implementation="blockwise", return_weights=True),
        NotImplementedError,
        ["return_weights", "'blockwise'", "'dense'"],
    ),
    "splash": (attend(implementation="splash"), NotImplementedError, ["'splash'", "auto"]),
    "cudnn": (attend(implementation="cudnn"), NotImplementedError, ["'cudnn'", "auto"]),
    "softcap 0": (attend(softcap=0.0), ValueError, ["softcap", "positive", "0.0", "None"]),
    "softcap negative": (attend(softcap=-5), ValueError, ["softcap", "-5"]),
    "softcap infinite": (attend(softcap=float("inf")), ValueError, ["softcap", "inf"]),
    "softcap NaN": (attend(softcap=float("nan")), ValueError, ["softcap", "nan"]),
    "softcap string": (attend(softcap="30"), TypeError, ["softcap", "'30'"]),
    "scale string": (attend(scale="0.5"), TypeError, ["scale", "'0.5'"]),
    "scale bool": (attend(scale=True), TypeError, ["scale", "True"]),
    "scale complex": (attend(scale=1j), TypeError, ["scale", "1j"]),
    "scale per head": (attend(scale=jnp.ones(4)), ValueError, ["scale", "(4,)", "multiply"]),
    "scale integer array": (attend(scale=jnp.ones((), int)), TypeError, ["scale", "int32"]),
    "scale NaN": (attend(scale=float("nan")), ValueError, ["scale", "nan"]),
    "query positions": (
        attend(query_positions=jnp.arange(4)), ValueError, ["query_positions", "(2, 3)", "(4,)"],
    ),
    "key positions": (attend(key_positions=[0] * 5), TypeError, ["key_positions", "list"]),
    # modules: settings
    "6 on 4": (separate(num_heads=6, num_kv_heads=4), ValueError, ["num_kv_heads", "6", "4"]),
    "0 heads": (separate(num_heads=0), ValueError, ["num_heads", "at least 1", "0"]),
    "negative heads": (merged(num_heads=-2), ValueError, ["num_heads", "-2"]),
    "kv 0": (separate(num_kv_heads=0), ValueError, ["num_kv_heads", "0"]),
    "kv 8": (merged(num_kv_heads=8), ValueError, ["num_kv_heads", "4", "8"]),
    "heads bool": (separate(num_heads=True), TypeError, ["num_heads", "True"]),
    "heads float": (merged(num_heads=4.0), TypeError, ["num_heads", "4.0"]),
    "heads None": (separate(num_heads=None), TypeError, ["num_heads", "None"]),
    "head_dim 0": (separate(head_dim=0), ValueError, ["head_dim", "0"]),
    "head_dim float": (separate(head_dim=2.0), TypeError, ["head_dim", "2.0"]),
    "out_features": (separate(out_features=0), ValueError, ["out_features", "0"]),
    "both widths": (separate(head_dim=2, qkv_features=8), ValueError, ["qkv_features", "head_dim"]),
    "qkv_features": (separate(qkv_features=10), ValueError, ["qkv_features", "num_heads=4", "10"]),
    "width by heads": (separate(num_heads=3), ValueError, ["inputs_q", "num_heads=3", "8"]),
    "ov": (separate(ov="low-rank"), ValueError, ["ov", "'merged'", "'low-rank'"]),
    "module rate": (separate(dropout_rate=1.0), ValueError, ["dropout_rate", "1.0"]),
    "module rate string": (merged(dropout_rate="a"), TypeError, ["dropout_rate", "'a'"]),
    "module softcap": (merged(softcap=-1.0), ValueError, ["softcap", "-1.0"]),
    "raw rate": (raw(X, dropout_rate=-1.0), ValueError, ["dropout_rate", "-1.0"]),
    "module implementation": (separate(implementation="x"), ValueError, ["implementation", "'x'"]),
    "later implementation": (merged(implementation="splash"), NotImplementedError, ["'splash'"]),
    "module scale": (separate(scale="1"), TypeError, ["scale", "'1'"]),
    "merged rotary": (
        lambda: aj.MergedAttention(4, position=aj.Rotary()), NotImplementedError,
        ["position", "Rotary", "separate", "ALiBi"],
    ),
    "merged norm": (
        lambda: aj.MergedAttention(4, normalize_qk=True), NotImplementedError,
        ["normalize_qk", "QK-norm", "separate"],
    ),
    "odd rotary": (
        separate(head_dim=3, position=aj.Rotary()), ValueError, ["head_dim", "even", "3"],
    ),
    "qk_init": (merged(qk_init="normal"), ValueError, ["qk_init", "'product'", "'normal'"]),
    "ov_init": (separate(ov="merged", ov_init=3), ValueError, ["ov_init", "3"]),
    # modules: inputs
    "1-D input": (separate(X[0, 0]), ValueError, ["inputs_q", "length", "(8,)"]),
    "integer input": (separate(X.astype(int)), TypeError, ["inputs_q", "floating", "int32"]),
    "list input": (merged([[1.0] * 8]), TypeError, ["inputs_q", "array", "list"]),
    "values alone": (separate(X, None, Y), ValueError, ["inputs_k", "inputs_v", "None"]),
    "other batch": (merged(X, Y[:1]), ValueError, ["inputs_k", "(2,)", "(1, 5, 6)"]),
    "other length": (separate(X, Y, Y[:, :4]), ValueError, ["inputs_v", "S=5", "(2, 4, 6)"]),
    "raw widths": (raw(X, Y), ValueError, ["inputs_k", "D=8", "width 6", "MergedAttention"]),
    "module mask": (separate(mask=np.ones((3, 3))), TypeError, ["mask", "booleans", "float64"]),
    "module bias": (separate(bias=jnp.ones((3, 3))), ValueError, ["bias", "ambiguous"]),
    "separate at apply": (
        other_width(aj.SeparateAttention), ValueError, ["key/kernel", "(7, 4, 2)", "(6, 4, 2)"],
    ),
    "merged at apply": (
        other_width(aj.MergedAttention), ValueError, ["qk/kernel", "(8, 4, 7)", "(8, 4, 6)"],
    ),
    "merged ov at apply": (
        other_width(aj.SeparateAttention, ov="merged"), ValueError, ["kernel", "7", "6"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE.values(), ids=TABLE)
def test_refusal(case):
    call, error, pieces = case
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    assert raised.type is error
    missing = [piece for piece in pieces if piece not in message]
    assert not missing, message
    assert "expected" in message and "got" in message and "Remedy" in message


@pytest.mark.parametrize("name", ["nonsense", "attend_", "SeperateAttention"])
def test_unknown_names_of_the_package(name):
    with pytest.raises(AttributeError, match=name):
        getattr(aj, name)


def test_unknown_keywords_are_refused_not_swallowed():
    for call in (
        lambda: aj.attend(Q, K, K, is_causal=True),
        lambda: aj.SeparateAttention(4, causal=True),
        lambda: aj.MergedAttention(4, rope=True),
        lambda: aj.RawAttention().apply({}, X, causal=True),
    ):
        with pytest.raises(TypeError, match="unexpected keyword"):
            call()
