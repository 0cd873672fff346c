"""What kernels refuse, by name, and what they are told about the platform."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

import attention_jax as aj
from attention_jax import kernels
from attention_jax.core import dispatch
from attention_jax.kernels import capability
from attention_jax.kernels.pattern import pattern
from attention_jax.masks.kinds import Causal
from tests.kernels.cases import request

B16 = jnp.bfloat16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sparse(Causal):
    """A mask of a user, which shows something else than its base."""


def asked(heads=(2, 2, 2), widths=(8, 8), lengths=(8, 8), dtype=B16, **settings):
    t, s = lengths
    shapes = ((t, heads[0], widths[0]), (s, heads[1], widths[0]), (s, heads[2], widths[1]))
    return request(*(jnp.ones((1, *shape), dtype) for shape in shapes), **settings)


SHARED = {
    "return_weights": asked(return_weights=True),
    "bias": asked(bias=jnp.zeros((1, 1, 1, 8))),
    "position": asked(position=aj.ALiBi(2)),
    "dropout_rate": asked(dropout_rate=0.1, dropout_key=jax.random.key(0)),
    "precision": asked(precision="highest"),
    "query_positions": asked(query_positions=jnp.arange(8) + 1, mask=aj.causal()),
    "mask": asked(mask=aj.causal() & np.ones((1, 1, 8, 8), bool)),
    "mask ": asked(mask=Sparse()),
}
SPLASH = SHARED | {
    "query": asked(dtype=jnp.float16),
    "query ": asked(widths=(8, 3073)),
    "value": asked(heads=(6, 2, 3)),
    "mask  ": asked(mask=aj.segments(jnp.ones(8, int)) & aj.segments(jnp.ones(8, int))),
    "mask   ": asked(mask=aj.segments(jnp.ones(8, jnp.uint32))),
}
CUDNN = SHARED | {
    "query": asked(dtype=jnp.float32),
    "query ": asked(widths=(12, 12)),
    "query  ": asked(widths=(264, 264)),
    "value": asked(widths=(8, 16)),
    "value ": asked(heads=(4, 2, 4)),
    "scale": asked(scale=jnp.array(0.1)),
    "scale ": asked(scale=0.0),
    "softcap": asked(softcap=5.0),
    "mask  ": asked(mask=aj.causal(), lengths=(7, 8)),
    "mask   ": asked(mask=aj.sliding_window(3)),
    "mask    ": asked(mask=aj.sliding_window(3) & aj.causal() & aj.padding(3)),
    "mask     ": asked(mask=aj.segments(jnp.ones(8, int))),
}
TAKEN = {
    "plain": asked(),
    "causal": asked(mask=aj.causal()),
    "window": asked(mask=aj.causal() & aj.sliding_window(3)),
    "padding": asked(mask=aj.causal() & aj.padding(3)),
    "grouped": asked(heads=(4, 2, 2), precision=("default", None)),
    "unseen positions": asked(query_positions=jnp.arange(8) + 1),
}


@pytest.fixture
def hopper(monkeypatch):
    # The device is absent here; what depends on it is this one number.
    monkeypatch.setattr(capability, "compute_capability", lambda: (9, 0))


@pytest.mark.parametrize(
    ("implementation", "platform", "refused"), [("splash", "tpu", SPLASH), ("cudnn", "gpu", CUDNN)]
)
def test_what_a_kernel_cannot_honour_is_refused_by_name(implementation, platform, refused, hopper):
    for name, found in TAKEN.items():
        assert kernels.refusal(implementation, found, platform) is None, name
        assert kernels.refusal(implementation, found, "cpu").argument == "implementation"
    for name, found in refused.items():
        reason = kernels.refusal(implementation, found, platform)
        assert reason is not None and reason.argument == name.strip(), (name, reason)
        with pytest.raises(NotImplementedError, match=f"^{reason.argument}: expected .*Remedy"):
            kernels.check(implementation, found, platform)
        if name != "return_weights":
            assert kernels.refusal("blockwise", found, platform) is None
        assert kernels.refusal("dense", found, platform) is None
    reason = kernels.refusal("blockwise", SHARED["return_weights"], "cpu")
    assert reason.argument == "return_weights" and "'dense'" in reason.remedy


def test_what_only_splash_takes():
    for found in (
        asked(mask=aj.sliding_window(3), lengths=(7, 9), softcap=3.0, scale=jnp.array(0.0)),
        asked(mask=aj.segments(jnp.ones(8, int)) & aj.padding(3), heads=(4, 1, 4)),
        asked(heads=(4, 4, 1), widths=(7, 3072)),
    ):
        assert kernels.refusal("splash", found, "tpu") is None


@pytest.mark.parametrize(("found", "takes"), [(None, False), ((0,), False), ((7, 5), False),
                                              ((8, 0), True), ((12, 0), True)])  # fmt: skip
def test_gpus_that_cudnn_knows(found, takes):
    wide = asked(widths=(256, 256))
    assert (capability._cudnn(asked(), pattern(None), found) is None) == takes
    newer = found is not None and found >= (9,)
    assert (capability._cudnn(wide, pattern(None), found) is None) == newer


def abstract(platform, kind, axes=()):
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    sizes = (4,) * len(axes)
    return jax.sharding.use_abstract_mesh(
        AbstractMesh(sizes, axes, axis_types=(AxisType.Auto,) * len(axes), abstract_device=device)
    )


def test_auto_takes_the_kernel_of_the_platform_that_is_traced_for():
    long = asked(lengths=(4096, 4096), mask=aj.causal())
    biased = asked(lengths=(4096, 4096), bias=jnp.zeros((1, 1, 1, 4096)))
    assert kernels.platform() == "cpu" and dispatch.chosen(long) == "blockwise"
    with abstract("tpu", "TPU v5 lite"):
        assert kernels.platform() == "tpu"
        assert dispatch.chosen(long) == "splash"
        assert dispatch.chosen(biased) == "blockwise"
        assert dispatch.chosen(asked()) == "dense"
    with abstract("tpu", "TPU v5 lite", ("data",)):
        assert dispatch.chosen(long) == "blockwise"
    with abstract("gpu", "NVIDIA H200"):
        # Its cuDNN cannot be asked.
        assert kernels.platform() == "gpu" and dispatch.chosen(long) == "blockwise"
    with jax.default_device(jax.devices("cpu")[1]):
        assert kernels.platform() == "cpu"


def test_a_program_for_one_device():
    found = {}

    def note(name):
        def run(x):
            found[name] = kernels.one_device()
            return x

        return run

    x = jnp.ones((4, 2))
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    specs = {"mesh": mesh, "in_specs": PartitionSpec("a"), "out_specs": PartitionSpec("a")}
    jax.pmap(note("pmap"))(x)
    jax.jit(note("jit"))(x)
    jax.jit(jax.shard_map(note("shard_map"), **specs))(x)
    jax.jit(jax.shard_map(note("one axis"), axis_names={"a"}, **specs))(x)
    with jax.set_mesh(mesh):
        jax.jit(note("mesh"))(x)
    single = jax.make_mesh((1,), ("a",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(single):
        jax.jit(note("mesh of one"))(x)
    assert found == {
        "pmap": True,
        "jit": False,
        "shard_map": True,
        "one axis": False,
        "mesh": False,
        "mesh of one": True,
    }


def test_splash_in_a_shard_map_that_checks_what_varies_is_refused():
    mesh = jax.make_mesh((2,), ("a",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec("a")

    def run(x):
        return kernels.splash_attention(request(x, x, x), interpret=True)

    with pytest.raises(NotImplementedError, match="check_vma=False"):
        jax.shard_map(run, mesh=mesh, in_specs=spec, out_specs=spec)(jnp.ones((2, 8, 1, 8), B16))


def test_splash_with_x64_enabled_is_refused():
    with jax.enable_x64(True):
        reason = kernels.refusal("splash", asked(), "tpu")
    assert "x64" in reason.expected


def test_the_table_names_all_implementations():
    lines = kernels.capabilities().splitlines()
    assert lines[0] == "| implementation | dense | blockwise | splash | cudnn |"
    assert len({line.count("|") for line in lines}) == 1
    names = [known.implementation for known in kernels.CAPABILITIES]
    assert ["auto", *names] == list(dispatch.IMPLEMENTATIONS)
