"""What the code that is being traced will run on."""

from typing import Any

import jax


def platform() -> str:
    """Returns "cpu", "gpu" or "tpu": where the code that is being traced will run.

    That is the platform of the mesh in context, which inside `jax.shard_map`, `jax.pmap` and
    `jax.set_mesh` is known, or of JAX's default device. Arrays that were put on other devices by
    hand are not seen: then name the implementation.

    Example:
      >>> import jax
      >>> with jax.default_device("cpu"):
      ...     platform()
      'cpu'
    """
    return _device().platform


def device_kind() -> str:
    """Returns the name of the device as its maker has it, such as "TPU v5 lite"."""
    return _device().device_kind


def compute_capability() -> tuple[int, ...] | None:
    """Returns the compute capability of the GPU, or None where the device is not present.

    GPUs that have none in CUDA's sense get `(0,)`.
    """
    found = getattr(_device(), "compute_capability", None)
    if found is None:
        return None
    numbers = str(found).split(".")
    return tuple(map(int, numbers)) if all(n.isdigit() for n in numbers) else (0,)


def one_device() -> bool:
    """Tells whether the code being traced surely is a program for one device.

    That is so inside `jax.pmap` and `jax.shard_map` with all axes of the mesh, which is such a
    program on each device, and where the platform has one device. `jax.jit` on a machine with
    several may be partitioned: shardings of its arguments are unknown while tracing.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.axis_names:
        by_hand = [kind == jax.sharding.AxisType.Manual for kind in mesh.axis_types]
        return all(by_hand) or (mesh.size == 1 and not any(by_hand))
    # A device without axes is what `use_abstract_mesh` has for a program that one device runs.
    return mesh.abstract_device is not None or jax.device_count(platform()) == 1


def _device() -> Any:
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    real = default if isinstance(default, jax.Device) else jax.devices(default)[0]
    if abstract is None or abstract.device_kind == real.device_kind:
        return real
    return abstract
