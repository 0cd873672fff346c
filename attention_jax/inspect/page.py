"""The inspection as files: JSON, PNG and one HTML page that needs nothing beside it."""

import base64
import html
import io
import json
import pathlib
from collections.abc import Callable

from attention_jax.inspect import figures, tables
from attention_jax.inspect.inspection import Inspection

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 64rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; }
th, td { padding: .2rem .55rem; text-align: right; border-bottom: 1px solid #ddd;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; white-space: normal; vertical-align: bottom; }
img { max-width: 100%; height: auto; } figure { margin: 1.2rem 0; }
figcaption { color: #555; font-size: .88rem; } summary { cursor: pointer; margin: .5rem 0; }
"""
EXPLANATION = """Scores depend on W_q and W_k through the product W_qk = W_q W_k^T alone, outputs on
W_v and W_o through W_ov = W_v W_o. Numerical rank counts singular values that are not rounding;
stable rank is the sum of their squares over the greatest square; effective rank is the exponential
of their entropy. Symmetry is 1 for a symmetric matrix and -1 for an antisymmetric one. "At 1%" is
the least rank whose nearest matrix is within 1% of W in the Frobenius norm."""
CURVES = """Relative error of the output of a head when one of its matrices is cut to a lower rank,
the others left alone: measured (solid) and the most it could be by the dropped singular values
(dotted). A bound for W_qk grows with the norms of the inputs, because a softmax can turn on a small
change of scores."""


def write(
    found: Inspection,
    folder: pathlib.Path,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[pathlib.Path]:
    """Writes report.html, inspection.json and the figures; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[str, bytes] = {
        "heat_maps": _png(figures.heat_maps(found)),
        "spectra": _png(figures.spectra(found)),
    }
    for layer in range(len(found.layers)):
        progress("figures", layer, len(found.layers))
        pictures[f"truncation_{layer}"] = _png(figures.truncation(found, layer))
    progress("figures", len(found.layers), len(found.layers))
    paths = []
    for name, picture in pictures.items():
        paths.append(folder / f"{name}.png")
        paths[-1].write_bytes(picture)
    paths.append(folder / "inspection.json")
    paths[-1].write_text(json.dumps(found.to_json(), allow_nan=False) + "\n")
    paths.append(folder / "report.html")
    paths[-1].write_text(_page(found, pictures))
    return paths


def _png(figure: figures.Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _page(found: Inspection, pictures: dict[str, bytes]) -> str:
    title = f"Attention matrices of {html.escape(found.path)}"
    every_head = [
        tables.HEADING,
        *(row for layer in range(len(found.layers)) for row in tables.heads(found, layer)),
    ]
    parts = [
        f"<h1>{title}</h1>",
        *(f"<p>{html.escape(sentence)}</p>" for sentence in tables.facts(found)),
        f"<p>{html.escape(EXPLANATION)}</p>",
        "<h2>Layers</h2>",
        "<p>Means over heads.</p>",
        _table(tables.layer_means(found)),
        "<h2>Heads</h2>",
        _image(pictures["heat_maps"], "Every head of every layer."),
        f"<details><summary>All numbers</summary>{_table(every_head)}</details>",
        "<h2>Spectra</h2>",
        _image(pictures["spectra"], "Singular values of every head, relative to its greatest."),
        "<h2>Truncation</h2>",
        f"<p>{html.escape(CURVES)}</p>",
    ]
    for layer, name in enumerate(found.layers):
        parts += [
            _image(pictures[f"truncation_{layer}"], f"Layer {layer} ({html.escape(name)})."),
            f"<details><summary>Numbers of layer {layer}</summary>"
            f"{_table(tables.curve(found, layer))}</details>",
        ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, '
        f'initial-scale=1"><title>{title}</title><style>{STYLE}</style>'
    )
    body = "\n".join(parts)
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _image(picture: bytes, caption: str) -> str:
    data = base64.b64encode(picture).decode()
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(rows: tables.Table) -> str:
    def cells(row: list[str], tag: str) -> str:
        return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)

    heading, *body = rows
    lines = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in body)
    return (
        f'<div class="scroll"><table><thead><tr>{cells(heading, "th")}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )
