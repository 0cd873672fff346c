"""Foreign settings: each is taken, must have one value, is known to be harmless, or is refused."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attention_jax import checks
from attention_jax.positions import Rotary

# They name files and classes, or say how a model was trained or how its text is to be sampled.
# None changes what the model computes from its inputs.
HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures
    attention_dropout attention_probs_dropout_prob attn_pdrop auto_map bad_words_ids
    begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout
    classifier_dropout_prob decoder_start_token_id directionality diversity_penalty do_sample dtype
    early_stopping embd_pdrop encoder_no_repeat_ngram_size eos_token_id eos_token_ids
    exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id
    gradient_checkpointing hidden_dropout hidden_dropout_prob id2label initializer_range
    is_llama_config label2id length_penalty max_length min_length model_type n_ctx
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_past output_scores pad_token_id pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type prefix
    pretraining_tp problem_type remove_invalid_values reorder_and_upcast_attn repetition_penalty
    resid_pdrop return_dict return_dict_in_generate sep_token_id summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype
    torchscript transformers.js_config transformers_version typical_p unk_token_id use_bfloat16
    use_cache
    """.split()
)
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
_HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining")
_REQUIRED = object()


class Settings:
    """The settings of a checkpoint, which must all be accounted for."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json"):
        """Takes foreign names and values, and what they are, for messages."""
        self._values = dict(values)
        self._left = dict(values)
        self._where = where

    def head(self, name: str, is_there: bool, tied: bool = False) -> bool:
        """Returns whether the model has a head, by its tensors and by the classes it is saved as.

        Args:
          name: The tensor that makes the head.
          is_there: Whether there is such a tensor.
          tied: Whether the head's matrix is the embedding.

        Raises:
          ValueError: The classes have a head, and its tensor is missing.
        """
        classes = self.take("architectures", None) or ()
        wanted = any(str(one).endswith(_HEADS) for one in classes)
        if wanted and not (is_there or tied):
            raise checks.refuse(
                ValueError,
                "tensors",
                f"{name}, because {self._where} architectures is {', '.join(map(str, classes))}",
                "none",
                "add the tensor, set tie_word_embeddings, or name a class without a head",
            )
        return is_there or tied

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Returns the value of `name`, or `default` where it is not given."""
        self._left.pop(name, None)
        if name in self._values:
            return self._values[name]
        if default is _REQUIRED:
            raise checks.refuse(
                ValueError, f"{self._where} {name}", "a value", "none", "complete the settings"
            )
        return default

    def choose(self, name: str, choices: Mapping[Any, Any], default: Any) -> Any:
        """Returns what `choices` has for the value of `name`; another value is refused."""
        value = self.take(name, default)
        if not isinstance(value, str | bool | None) or value not in choices:
            known = ", ".join(map(repr, choices))
            raise self.unsupported(name, f"one of {known}", value)
        return choices[value]

    def size(self, name: str, default: Any = _REQUIRED) -> int:
        """Returns a positive integer."""
        value = self.take(name, default)
        checks.check_positive_int(f"{self._where} {name}", value)
        return value

    def real(self, name: str, default: float | None = None) -> Any:
        """Returns a real number, or None where neither a value nor a default is given."""
        value = self.take(name, default)
        if value is not None:
            checks.check_real(f"{self._where} {name}", value)
        return value

    def require(self, **wanted: Any) -> None:
        """Refuses every setting that is given with another value than the wanted one."""
        for name, value in wanted.items():
            found = self.take(name, value)
            if found != value or isinstance(found, bool) != isinstance(value, bool):
                raise self.unsupported(name, repr(value), found)

    def unsupported(self, name: str, expected: str, found: Any) -> Exception:
        """Returns the error for a setting that this library cannot honour."""
        return checks.refuse(
            NotImplementedError,
            f"{self._where} {name}",
            expected,
            repr(found),
            "this setting changes what the model computes and is not supported",
        )

    def finish(self, harmless: Iterable[str] = ()) -> None:
        """Refuses what nobody asked for, unless it is harmless.

        Raises:
          NotImplementedError: A setting is unknown; the message names all of them.
        """
        allowed = HARMLESS | set(harmless)
        unknown = sorted(name for name in self._left if name not in allowed)
        if unknown:
            found = ", ".join(f"{name}={self._left[name]!r}"[:80] for name in unknown)
            raise checks.refuse(
                NotImplementedError,
                self._where,
                "settings that this library knows",
                found,
                "if one changes nothing, say so with allow_settings=['name']",
            )

    def rotary(
        self,
        *,
        theta: float,
        fraction: float = 1.0,
        theta_names: Sequence[str] = ("rope_theta",),
        fraction_names: Sequence[str] = ("partial_rotary_factor",),
    ) -> Rotary:
        """Returns the rotary encoding, from the flat or the nested spelling of its settings.

        Args:
          theta: Base where none is given.
          fraction: Share of the channels where none is given.
          theta_names: Flat names of the base.
          fraction_names: Flat names of the share.
        """
        bases = [self.real(name) for name in theta_names]
        shares = [self.real(name) for name in fraction_names]
        for name in ("rope_parameters", "rope_scaling"):
            given = self.take(name, None)
            if given is not None and not isinstance(given, Mapping):
                raise self.unsupported(name, "a table of settings or null", given)
            inner = Settings(given or {}, f"{self._where} {name}")
            for kind in ("rope_type", "type"):
                inner.choose(kind, {"default": None, None: None}, None)
            bases.append(inner.real("rope_theta"))
            shares.append(inner.real("partial_rotary_factor"))
            inner.finish()
        return Rotary(
            theta=self._one(theta_names[0], bases, theta),
            fraction=self._one(fraction_names[0], shares, fraction),
        )

    def _one(self, name: str, spellings: Sequence[float | None], default: float) -> float:
        """Returns the value that all spellings of a setting agree on."""
        given = {float(value) for value in spellings if value is not None}
        if len(given) > 1:
            raise checks.refuse(
                ValueError,
                f"{self._where} {name}",
                "one value, as rope_parameters has it",
                " and ".join(map(str, sorted(given))),
                "keep one of them",
            )
        return given.pop() if given else default
