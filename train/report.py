"""The report of an experiment from its files alone: terminal, Markdown, PNG and one HTML page."""

import base64
import html
import pathlib
import types

import rich.box
import rich.console
import rich.table

from train import figures, ngrams, results, statistics, verdict

Table = list[list[str]]

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto;
       padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; }
th, td { padding: .35rem .7rem; text-align: right; border-bottom: 1px solid #ddd;
         white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { border-bottom: 2px solid #888; white-space: normal; vertical-align: bottom; }
figure { margin: 1.5rem 0; } img { max-width: 100%; height: auto; }
figcaption { color: #555; font-size: .9rem; }
"""


def loss_table(experiment: results.Experiment) -> Table:
    """Held-out loss and its paired difference by form; the first row is the heading."""
    rows = [["form", "held-out nats/byte", "minus separate", "seeds"]]
    for form in experiment.forms:
        loss = experiment.values(form, verdict.LOSS)
        found = verdict.difference(experiment, form)
        mean = statistics.interval(list(loss.values()))
        difference = found.text(sign=True) if found else ""
        rows.append([form, mean.text(), difference, str(len(loss))])
    return rows


def cost_table(experiment: results.Experiment) -> Table:
    """Sizes, FLOPs and speed by form."""
    rows = [["form", *_COSTS]]
    for form in experiment.forms:
        cells = [f"{_mean(experiment, form, name):{layout}}" for name, layout in _COSTS.values()]
        rows.append([form, *cells])
    return rows


_COSTS = types.MappingProxyType(
    {
        "parameters": ("parameters", ",.0f"),
        "in attention": ("attention_parameters", ",.0f"),
        "training FLOPs": ("train_flops", ".3g"),
        "cache bytes per token": ("cache_bytes_per_token", ",.0f"),
        "seconds a run": ("seconds", ".1f"),
        "tokens per second": ("tokens_per_s", ",.0f"),
    }
)


def _mean(experiment: results.Experiment, form: str, name: str) -> float:
    return statistics.interval(list(experiment.values(form, name).values())).mean


def rank_table(experiment: results.Experiment) -> Table:
    """Ranks of the final W_qk by form and layer, means over heads and seeds."""
    rows = [["form", "layer", "numerical rank", "stable rank", "effective rank"]]
    for form in experiment.forms:
        for layer in verdict.layers(experiment):
            cells = []
            for kind in ("rank", "stable_rank", "effective_rank"):
                value = verdict.mean_rank(experiment, form, layer, kind)
                cells.append("" if value is None else f"{value:.1f}")
            name = "raw (W = I)" if form == "raw" else form
            rows.append([name, layer.replace("_", " "), *cells])
    return rows


def ngram_table() -> Table:
    """The n-gram baselines by order, a row for each source of them."""
    rows = [["held-out nats/byte by order", *(f"{order}" for order in ngrams.REFERENCE)]]
    for source, losses in ngrams.SOURCES.items():
        rows.append([source, *(f"{nats:.3f}" for nats in losses.values())])
    return rows


def _tables(experiment: results.Experiment) -> dict[str, Table]:
    tables = {
        "Loss (mean over seeds ± 95% t-interval, paired by seed)": loss_table(experiment),
        "Cost (a multiply-add is 2 FLOPs)": cost_table(experiment),
    }
    if verdict.has_ngrams(experiment):
        tables[f"What byte n-grams reach (`{ngrams.COMMAND}`)"] = ngram_table()
    tables["Rank of the final W_qk (mean over heads and seeds)"] = rank_table(experiment)
    return tables


def _settings(experiment: results.Experiment) -> str:
    config = experiment.config
    model = config.model
    return (
        f"{model.num_layers} layers, width {model.width}, {model.num_heads} heads, context "
        f"{model.context}, batch {config.data.batch_size}, {config.optimizer.steps} steps of AdamW "
        f"at {config.optimizer.learning_rate:g}, position {model.position}, {model.dtype}; merged "
        f'starts from "{model.start}".'
    )


def _markdown(experiment: results.Experiment, images: dict[str, pathlib.Path]) -> str:
    lines = [f"# Comparison: {experiment.name}", "", _settings(experiment), ""]
    lines += [verdict.paragraph(experiment), ""]
    for caption, table in _tables(experiment).items():
        lines += [f"## {caption}", "", "| " + " | ".join(table[0]) + " |"]
        lines += ["|" + " --- |" * len(table[0])]
        lines += ["| " + " | ".join(row) + " |" for row in table[1:]] + [""]
    for caption, path in images.items():
        lines += [f"## {caption}", "", f"![{caption}](figures/{path.name})", ""]
    return "\n".join(lines)


def _html(experiment: results.Experiment, images: dict[str, pathlib.Path]) -> str:
    parts = [f"<h1>Comparison: {html.escape(experiment.name)}</h1>"]
    parts += [f"<p>{html.escape(_settings(experiment))}</p>"]
    parts += [f"<p><strong>{html.escape(verdict.paragraph(experiment))}</strong></p>"]
    for caption, table in _tables(experiment).items():
        heading, *rows = [[html.escape(cell) for cell in row] for row in table]
        parts += [f"<h2>{html.escape(caption.replace('`', ''))}</h2>"]
        parts += ['<div class="scroll"><table><thead><tr>']
        parts += [f'<th scope="col">{cell}</th>' for cell in heading]
        parts += ["</tr></thead><tbody>"]
        for row in rows:
            parts += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>"]
        parts += ["</tbody></table></div>"]
    for caption, path in images.items():
        text = html.escape(caption)
        data = base64.b64encode(path.read_bytes()).decode()
        parts += [f'<figure><img alt="{text}" src="data:image/png;base64,{data}">']
        parts += [f"<figcaption>{text}</figcaption></figure>"]
    body = "\n".join(parts)
    title = html.escape(experiment.name)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Comparison: {title}</title><style>{STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _print(
    experiment: results.Experiment, files: list[pathlib.Path], console: rich.console.Console
) -> None:
    for caption, table in _tables(experiment).items():
        shown = rich.table.Table(
            title=caption,
            title_justify="left",
            box=rich.box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        for index, name in enumerate(table[0]):
            longest = max(len(word) for word in name.split())
            shown.add_column(name, justify="right" if index else "left", min_width=longest)
        for row in table[1:]:
            shown.add_row(*row)
        console.print(shown)
    console.print(verdict.paragraph(experiment), markup=False, highlight=False)
    for path in files:
        console.print(str(path), soft_wrap=True, markup=False, highlight=False)


def write(
    directory: pathlib.Path, console: rich.console.Console | None = None
) -> list[pathlib.Path]:
    """Writes and prints the report of an experiment.

    Args:
      directory: RUNS/NAME of the experiment; receives report.md, report.html and figures/.
      console: where the tables are printed; the terminal by default.

    Returns:
      The files written.

    Raises:
      FileNotFoundError: there are no runs in the directory.
      ValueError: no run is finished, runs have different settings, or a file is damaged.
    """
    experiment = results.read(directory)
    images = figures.save(experiment, directory / "figures", verdict.has_ngrams(experiment))
    page, text = directory / "report.html", directory / "report.md"
    page.write_text(_html(experiment, images), encoding="utf-8")
    text.write_text(_markdown(experiment, images), encoding="utf-8")
    files = [page, text, *images.values()]
    _print(experiment, files, console or rich.console.Console())
    return files
