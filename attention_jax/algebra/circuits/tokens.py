"""Circuits from token to token, through embeddings, in blocks."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from attention_jax import checks
from attention_jax.algebra import lowrank
from attention_jax.algebra.circuits.circuit import Circuit
from attention_jax.types import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TokenCircuit:
    """The matrix `rows W columns^T` per head, from every token to every other, never held whole.

    With the embedding on both sides of W_qk it holds the scores between tokens (`E W_qk E^T`); with
    embedding and unembedding around W_ov, what attending a token adds to the logits
    (`E W_ov U^T`).

    Attributes:
      circuit: W, `[H, M, N]`.
      rows: `[A, M]`, an embedding for each row.
      columns: `[C, N]`, an embedding for each column.

    Raises:
      ValueError: By the methods, if widths do not fit.
      TypeError: By the methods, if an embedding is not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> tokens = jnp.eye(3)
      >>> circuit = Circuit(jnp.diag(jnp.array([3.0, 2.0, 1.0]))[None])
      >>> copying = TokenCircuit(circuit, tokens, tokens)
      >>> values, columns = copying.top(1)
      >>> values[0, :, 0].tolist(), columns[0, :, 0].tolist()
      ([3.0, 2.0, 1.0], [0, 1, 2])
      >>> copying.positive_share().tolist()
      [1.0]

    Paper: Elhage et al., A mathematical framework for transformer circuits (2021).
    """

    circuit: Circuit
    rows: Float[Array, "A M"]
    columns: Float[Array, "C N"]

    def block(self, rows: Int[Array, " a"], columns: Int[Array, " c"]) -> Float[Array, "H a c"]:
        """Returns the entries of some rows and columns, by index; NaN for an index out of range."""
        projected = self._columns(self._take("columns", columns))
        return self._entries(self._take("rows", rows), projected)

    def blocks(self, size: int) -> Iterator[Float[Array, "H a C"]]:
        """Yields `size` whole rows at a time, the last time what is left.

        Raises:
          ValueError: `size` is below 1.
          TypeError: `size` is not an integer.
        """
        checks.check_positive_int("size", size)
        rows, columns = (self._take(name) for name in ("rows", "columns"))
        projected = self._columns(columns)
        for start in range(0, len(rows), size):
            yield self._entries(rows[start : start + size], projected)

    def top(
        self, k: int, block_size: int = 128
    ) -> tuple[Float[Array, "H A k"], Int[Array, "H A k"]]:
        """Returns the `k` greatest entries of each row, descending, and their columns.

        No more than `block_size` whole rows are held at a time.

        Raises:
          ValueError: `k` exceeds the number of columns, or an argument is below 1.
          TypeError: An argument is not an integer.
        """
        rows, columns = (self._take(name) for name in ("rows", "columns"))
        checks.check_positive_int("k", k)
        checks.check_positive_int("block_size", block_size)
        if k > len(columns):
            raise checks.refuse(
                ValueError, "k", f"at most {len(columns)}, the number of columns", k, "ask for less"
            )
        projected = self._columns(columns)
        count = -(-len(rows) // block_size)
        # The last block repeats the last row until it is full.
        index = jnp.minimum(jnp.arange(count * block_size), len(rows) - 1)

        def best(index: Int[Array, " a"]) -> tuple[Array, Array]:
            values, places = jax.lax.top_k(self._entries(rows[index], projected), k)
            return values, places

        found = jax.lax.map(best, index.reshape(count, block_size))
        values, places = (x.swapaxes(0, 1).reshape(x.shape[1], -1, k) for x in found)
        return values[:, : len(rows)], places[:, : len(rows)]

    def eigenvalues(self) -> Array:
        """Returns the eigenvalues but for zeros `[H, R]`, as `Circuit.eigenvalues` does.

        They come from the core of the circuit's own rank.

        Raises:
          ValueError: Rows and columns are not equally many.
        """
        rows, columns = (self._take(name) for name in ("rows", "columns"))
        if len(rows) != len(columns):
            raise checks.refuse(
                ValueError,
                "eigenvalues",
                "as many rows as columns",
                f"{len(rows)} and {len(columns)}",
                "use one vocabulary on both sides",
            )
        left, right = self.circuit.factors()
        if right is None:
            both = jnp.einsum("AN,AM->NM", columns, rows, precision="highest")
            return lowrank.eigenvalues(jnp.einsum("NM,HMR->HNR", both, left, precision="highest"))
        rows = jnp.einsum("AM,HMR->HAR", rows, left, precision="highest")
        return lowrank.eigenvalues(
            jnp.einsum("HAQ,HAR->HQR", self._columns(columns), rows, precision="highest")
        )

    def positive_share(self) -> Float[Array, " H"]:
        """Returns `sum Re(lambda) / sum |lambda|` per head, from -1 to 1; 0 if all are zero.

        Of the OV circuit, 1 means that tokens raise their own logits: the head copies.

        Raises:
          ValueError: Rows and columns are not equally many.
        """
        values = self.eigenvalues()
        return lowrank.ratio(values.real.sum(-1), jnp.abs(values).sum(-1))

    def _take(self, name: str, index: Array | None = None) -> Array:
        """Returns the embeddings of one side, or those at `index`, checked."""
        embedding = getattr(self, name)
        checks.check_floating(name, embedding)
        width = self.circuit.shape[1 if name == "rows" else 2]
        if embedding.ndim != 2 or embedding.shape[1] != width:
            raise checks.refuse(
                ValueError,
                name,
                f"[tokens, {width}], the circuit's width on this side",
                f"shape {embedding.shape}",
                "pass one embedding per token, or transpose the circuit",
            )
        embedding = lowrank.wide(embedding)
        if index is None:
            return embedding
        return jnp.take(embedding, index, axis=0, mode="fill", fill_value=jnp.nan)

    def _columns(self, columns: Array) -> Array:
        """Returns `columns right` of each head `[H, C, R]`, or the columns of whole matrices."""
        _, right = self.circuit.factors()
        if right is None:
            return columns
        return jnp.einsum("CN,HNR->HCR", columns, right, precision="highest")

    def _entries(self, rows: Array, columns: Array) -> Array:
        left, _ = self.circuit.factors()
        rows = jnp.einsum("AM,HMR->HAR", rows, left, precision="highest")
        product = "HAR,HCR->HAC" if columns.ndim == 3 else "HAR,CR->HAC"
        return jnp.einsum(product, rows, columns, precision="highest")
