"""Layers of every form with what they keep, and the float64 judge of causal rows with padding."""

import dataclasses

import jax.numpy as jnp
import numpy as np

import attention_jax as aj
from attention_jax.testing import reference

D, K = 6, 4


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer, and how it is evaluated."""

    form: str
    ov: str = "separate"
    kind: str | None = None
    heads: int = 4
    groups: int = 2
    bias: bool = True
    softcap: float | None = None
    position: str | None = None
    window: int | None = None
    norm: bool = False

    @property
    def encoding(self):
        heads = 1 if self.form == "raw" else self.heads
        return {"rotary": aj.Rotary(theta=7.0), "alibi": aj.ALiBi(heads), None: None}[self.position]

    def module(self, **settings):
        settings |= {"position": self.encoding, "softcap": self.softcap}
        if self.form == "raw":
            return aj.RawAttention(scale=0.7, **settings)
        settings |= {"num_kv_heads": self.groups, "ov": self.ov, "use_bias": self.bias}
        if self.form == "merged":
            return aj.MergedAttention(self.heads, K, **settings)
        return aj.SeparateAttention(self.heads, K, normalize_qk=self.norm, **settings)

    def separate(self, seed=0):
        """Parameters of the separate layer with this function."""
        rng = np.random.default_rng(seed)
        shapes = {
            "query": (D, self.heads, K),
            "key": (D, self.groups, K),
            "value": (D, self.groups, K),
            "out": (self.heads, K, D),
        }
        params = {name: {"kernel": 0.5 * rng.normal(size=s)} for name, s in shapes.items()}
        for name, shape in shapes.items() if self.bias else ():
            params[name]["bias"] = rng.normal(size=shape[2:] if name == "out" else shape[1:])
        if self.norm:
            params |= {name: {"scale": rng.normal(size=K)} for name in ("query_ln", "key_ln")}
        return params

    def params(self, seed=0):
        if self.form == "raw":
            return {}
        qk, ov = self.form == "merged", self.ov == "merged"
        params = self.separate(seed)
        return aj.merge(params, qk=qk, ov=ov, softcap=self.softcap) if qk or ov else params

    def by_hand(self, x, valid, seed=0):
        """Outputs in float64 where each token sees valid tokens up to itself, within the window."""
        positions = np.cumsum(valid, axis=1) - 1
        queries, keys = positions[:, :, None], positions[:, None, :]
        sees = valid[:, :, None] & valid[:, None] & (keys <= queries)
        if self.window is not None:
            sees &= queries - keys < self.window
        bias = None
        if self.position == "alibi":
            slopes = np.array(self.encoding.slopes())[:, None, None]
            bias = -slopes * np.abs(queries - keys)[:, None]
        if self.form == "raw":
            params, scale = None, 0.7
            query = key = value = x[:, :, None]
        else:
            params, scale = self.separate(seed), K**-0.5
            query, key, value = (
                np.einsum("btd,dhk->bthk", x, params[name]["kernel"]) + params[name].get("bias", 0)
                for name in ("query", "key", "value")
            )
        if self.norm:
            query, key = (
                normal(heads) * params[f"{name}_ln"]["scale"]
                for name, heads in (("query", query), ("key", key))
            )
        if self.position == "rotary":
            query, key = rotated(query, positions), rotated(key, positions)
        heads, _ = reference.attend(query, key, value, sees[:, None], bias, scale, self.softcap)
        if params is None:
            return heads[:, :, 0]
        output = np.einsum("bthv,hvo->bto", heads, params["out"]["kernel"])
        return output + params["out"].get("bias", 0)


def normal(x):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def rotated(x, positions):
    half = x.shape[-1] // 2
    angles = positions[..., None, None] * 7.0 ** (-np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


# One layer of each kind whose weights are zero or one: every visible token weighs the same, and the
# output is the mean of the numbers that are its inputs.
def uniform(form, ov="separate", **init):
    ones = {"kernel": jnp.ones((1, 1, 1))}
    zeros = {"kernel": jnp.zeros((1, 1, 1))}
    values = {"value": ones, "out": ones} if ov == "separate" else {"ov": ones}
    if form == "raw":
        return aj.RawAttention(scale=0.0), {}, init
    if form == "merged":
        return aj.MergedAttention(1, 1, ov=ov, use_bias=False), {"qk": zeros, **values}, init
    module = aj.SeparateAttention(1, 1, ov=ov, use_bias=False)
    return module, {"query": zeros, "key": ones, **values}, init


UNIFORM = {
    "separate": uniform("separate"),
    "absorbed": uniform("separate", kind="inputs"),
    "separate, merged OV": uniform("separate", "merged"),
    "absorbed, merged OV": uniform("separate", "merged", kind="inputs"),
    "merged": uniform("merged"),
    "merged, absorbed OV": uniform("merged", kind="inputs"),
    "merged QK and OV": uniform("merged", "merged"),
    "raw": uniform("raw"),
}
