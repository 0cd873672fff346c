"""Sizes of the blocks of a TPU kernel."""

# A block holds rows of queries, keys, values, outputs and their gradients in scoped memory, which
# is 16 MiB on a v5e and 32 MiB on a v6e. What their compiler takes for the gradient at 8192 to
# 65,536 tokens, as (bytes of the widest row, largest block). It takes more at 8192 alone.
_SMALL_MEMORY = ((1536, 512), (3072, 256), (6144, 128))
_LARGE_MEMORY = ((3072, 512), (6144, 256), (8192, 128))
_LEAST = 128


def widest_row_bytes(device_kind: str) -> int:
    """Returns the most bytes that a query, key or value of one head may have on a TPU.

    Example:
      >>> widest_row_bytes("TPU v5 lite"), widest_row_bytes("TPU v6 lite")
      (6144, 8192)
    """
    return _table(device_kind)[-1][0]


def block_size(row_bytes: int, device_kind: str) -> int:
    """Returns the largest number of tokens of a block whose gradient compiles on a TPU.

    Queries and keys have blocks of the same size, in the forward and in the backward pass.

    Args:
      row_bytes: Of the widest of query, key and value of one head, at most `widest_row_bytes`.
      device_kind: As JAX names the device. Kinds that are not known get what a v5e can do.

    Returns:
      512, 256 or 128.

    Example:
      >>> [block_size(2 * width, "TPU v5 lite") for width in (64, 1024, 3072)]
      [512, 256, 128]
      >>> block_size(2 * 1024, "TPU v6 lite")
      512
    """
    return next(size for most, size in _table(device_kind) if row_bytes <= most)


def padded(length: int, most: int) -> tuple[int, int]:
    """Returns `(block, length in whole blocks)` with blocks of at most `most` tokens.

    Blocks are as even as their step of 128 tokens allows, so that little is filled up.

    Example:
      >>> padded(640, 512), padded(1, 512), padded(8192, 512)
      ((384, 768), (128, 128), (512, 8192))
    """
    blocks = -(-length // most)
    size = -(-length // (blocks * _LEAST)) * _LEAST
    return size, blocks * size


def _table(device_kind: str) -> tuple[tuple[int, int], ...]:
    return _LARGE_MEMORY if device_kind.startswith("TPU v6") else _SMALL_MEMORY
