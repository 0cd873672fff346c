"""The loop of one run: the only place with a clock and files."""

import json
import pathlib
import time
import typing

import jax
import numpy as np

from train import checkpoints as checkpoints_lib
from train import config as config_lib
from train import config_files, data, documents, files, metrics, parallel, progress, summary
from train import state as state_lib


class Texts(typing.NamedTuple):
    """Training and held-out documents, joined."""

    train: data.Corpus
    held_out: data.Corpus


def load_texts(settings: config_lib.DataConfig) -> Texts:
    """Reads the corpus once for all runs."""
    split = documents.load(settings)
    return Texts(data.join(split.train), data.join(split.held_out))


class _Run:
    """One run from its first or its last saved step to the end."""

    def __init__(
        self,
        config: config_lib.Config,
        directory: pathlib.Path,
        program: parallel.Program,
        texts: Texts,
        say: progress.Say,
    ):
        self.config = config
        self.records = directory / "metrics.jsonl"
        self.program = program
        self.texts = texts
        self.say = say
        self._seconds = 0.0
        self._since: float | None = None

    @property
    def seconds(self) -> float:
        """Training time over all starts, without compilation, evaluation and saving."""
        since = self._since
        return self._seconds + (0.0 if since is None else time.perf_counter() - since)

    def start_clock(self) -> None:
        self._since = time.perf_counter()

    def stop_clock(self) -> None:
        self._seconds, self._since = self.seconds, None

    def batches(self, first: int, count: int) -> data.Batch:
        return data.training_batches(
            self.texts.train,
            seed=self.config.run.seed,
            first=first,
            count=count,
            batch_size=self.config.data.batch_size,
            context=self.config.model.context,
        )

    def last(self, kind: str) -> metrics.Record:
        """The newest record of a kind; the one at the last step once the run is complete."""
        return metrics.last(metrics.read(self.records), kind, self.records)

    def restore(self, saved: checkpoints_lib.Checkpoints) -> tuple[int, state_lib.State]:
        latest = saved.latest()
        step = latest or 0
        # Without a checkpoint everything is repeated, the evaluation at step 0 included.
        dropped = metrics.truncate(self.records, -1 if latest is None else step)
        if dropped:
            self.say(f"dropped {dropped} lines of {self.records} after step {step}")
        if latest is None:
            return 0, self.program.initial_state(self.config.run.seed)
        state = saved.restore(step, self.program.abstract_state())
        self._seconds = self.last("train")["seconds"]
        self.say(f"resuming at step {step} of {self.config.optimizer.steps}")
        return step, self.program.place(state)

    def record(self, first: int, pending: typing.Any, bar: progress.Bar) -> None:
        """Fetches a call's metrics and writes their record; a loss that is not finite raises."""
        fetched = {name: np.asarray(value) for name, value in pending.items()}
        last = first + len(fetched["loss"])
        bad = np.flatnonzero(~np.isfinite(fetched["loss"]) | ~np.isfinite(fetched["gradient_norm"]))
        if len(bad):
            raise FloatingPointError(
                f"step {first + int(bad[0])}: expected a finite loss and gradient, got loss "
                f"{fetched['loss'][bad[0]]}; lower optimizer.learning_rate or set "
                "optimizer.clip_norm"
            )
        record: metrics.Record = {"kind": "train", "step": last}
        record |= {name: float(value.mean(dtype=np.float64)) for name, value in fetched.items()}
        record |= {"learning_rate": float(fetched["learning_rate"][-1]), "seconds": self.seconds}
        metrics.append(self.records, record)
        bar.update(last, record["loss"], record["seconds"])

    def evaluate(self, step: int, state: state_lib.State, max_tokens: int) -> None:
        batches = data.evaluation_batches(
            self.texts.held_out,
            max_tokens=max_tokens,
            batch_size=self.config.data.batch_size,
            context=self.config.model.context,
        )
        sums = self.program.evaluate(state.params, batches)
        loss = float(sums.mean())
        if not np.isfinite(loss):
            raise FloatingPointError(
                f"step {step}: expected a finite held-out loss, got {loss}; lower "
                "optimizer.learning_rate or set optimizer.clip_norm"
            )
        record = {"kind": "eval", "step": step, "nats_per_byte": loss}
        record |= {"tokens": int(sums.tokens), "ranks": summary.ranks(state.params)}
        metrics.append(self.records, record)

    def run(self, saved: checkpoints_lib.Checkpoints, bar: progress.Bar) -> state_lib.State:
        settings, steps = self.config.run, self.config.optimizer.steps
        step, state = self.restore(saved)
        pending: tuple[int, typing.Any] | None = None
        self.program.prepare(state, self.batches(step, settings.log_every))
        bar.update(step)
        if step == 0:
            self.evaluate(step, self.program.single(state), settings.eval_tokens)
        self.start_clock()
        while step < steps:
            count = min(settings.log_every, steps - step)
            state, found = self.program.train(state, self.batches(step, count))
            # The previous call's metrics are fetched while this one computes.
            if pending is not None:
                self.record(*pending, bar)
            pending = (step, found)
            step += count
            evaluates = settings.eval_every and step % settings.eval_every == 0
            saves = step % settings.checkpoint_every == 0
            if step == steps or evaluates or saves:
                self.record(*pending, bar)
                pending = None
                self.stop_clock()
                single = self.program.single(state)
                # Saved last, so that a checkpoint's records are complete.
                if evaluates or step == steps:
                    final = step == steps
                    tokens = settings.final_eval_tokens if final else settings.eval_tokens
                    self.evaluate(step, single, tokens)
                if saves or step == steps:
                    saved.save(step, single, self.config)
                self.start_clock()
        self.stop_clock()
        return self.program.single(state)


def run(
    config: config_lib.Config,
    directory: pathlib.Path,
    *,
    program: parallel.Program,
    texts: Texts,
    say: progress.Say = print,
) -> dict[str, typing.Any]:
    """Trains one run, continuing from its newest checkpoint.

    Args:
      config: the run's settings, its form and seed included.
      directory: receives config.json, metrics.jsonl, checkpoints/ and, at the end, result.json.
      program: compiled steps for this config's model, optimizer and devices.
      texts: the joined documents.
      say: where lines for the reader go.

    Returns:
      The record that is also written to result.json.

    Raises:
      FloatingPointError: a loss or gradient is not finite; names the step.
      ValueError: the vocabulary is too small for the text, or the directory holds another config
        or a checkpoint that does not fit.
    """
    largest = max(int(corpus.text.max()) for corpus in texts)
    if largest >= config.model.vocab_size:
        raise ValueError(
            f"model.vocab_size: expected more than the largest byte {largest} of the text, got "
            f"{config.model.vocab_size}; use 256"
        )
    directory.mkdir(parents=True, exist_ok=True)
    refuse_other_config(config, directory)
    files.write(directory / "config.json", config_files.to_json(config) + "\n")
    one = _Run(config, directory, program, texts, say)
    title = f"{config.model.form} seed {config.run.seed}"
    tokens = config.data.batch_size * config.model.context
    with (
        checkpoints_lib.Checkpoints(directory / "checkpoints") as saved,
        progress.Bar(title, config.optimizer.steps, tokens, say) as bar,
    ):
        state = one.run(saved, bar)
    trained, evaluated = one.last("train"), one.last("eval")
    result = {
        "form": config.model.form,
        "seed": config.run.seed,
        "steps": config.optimizer.steps,
        "held_out_nats_per_byte": evaluated["nats_per_byte"],
        "held_out_tokens": evaluated["tokens"],
        "train_loss": trained["loss"],
        "seconds": trained["seconds"],
        "tokens_per_s": tokens * config.optimizer.steps / trained["seconds"],
        **summary.sizes(config),
        "spectra": summary.spectra(state.params),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
    }
    text = json.dumps(result, indent=1, allow_nan=False)
    files.write(directory / "result.json", text + "\n")
    return result


def refuse_other_config(config: config_lib.Config, directory: pathlib.Path) -> None:
    """Raises a ValueError naming the fields in which a stored config differs."""
    path = directory / "config.json"
    if not path.is_file():
        return
    lines = config_files.differences(config_files.load(path), config)
    if lines:
        raise ValueError(
            f"{directory}: expected the config stored there, got another ({'; '.join(lines)}); "
            "set another name=..., or delete the directory"
        )
