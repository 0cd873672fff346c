"""Parameters of one layer for the tests of the algebra."""

import numpy as np


def layer(d=7, e=5, heads=4, groups=2, width=3, out=6, bias=True, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = {
        "query": ((d, heads, width), (heads, width)),
        "key": ((e, groups, width), (groups, width)),
        "value": ((e, groups, width), (groups, width)),
        "out": ((heads, width, out), (out,)),
    }
    return {
        name: {"kernel": rng.normal(size=kernel).astype(dtype)}
        | ({"bias": rng.normal(size=shape).astype(dtype)} if bias else {})
        for name, (kernel, shape) in shapes.items()
    }


def repeated(params, name, heads=4):
    kernel = np.asarray(params[name]["kernel"], np.float64)
    return np.repeat(kernel, heads // kernel.shape[1], axis=1)


def qk_matrices(params):
    return np.einsum("dhk,ehk->hde", repeated(params, "query"), repeated(params, "key"))


def ov_matrices(params):
    w_o = np.asarray(params["out"]["kernel"], np.float64)
    return np.einsum("ehk,hko->heo", repeated(params, "value", len(w_o)), w_o)
