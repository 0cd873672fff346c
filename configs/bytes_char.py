"""A longer byte-level comparison on Shakespeare.

Purpose: a longer comparison whose separate form beats the byte 6-gram.
Command: python -m train configs/bytes_char.py
         makes nine runs, which take hours; a comparison that was stopped continues
         (one run: python -m train run configs/bytes_char.py model.form=merged run.seed=0)
Hardware: 2 CPU cores, no accelerator.
Measured: 37 minutes for separate, seed 0, beside other work on the two cores; merged and raw were
not measured.
Expected: 1.591 held-out nats/byte (separate, seed 0, measured); the byte 6-gram reaches 1.69.
"""

from train import config


def get_config() -> config.Config:
    """The comparison's settings."""
    return config.Config(
        name="bytes_char",
        model=config.ModelConfig(num_layers=4, width=128, num_heads=4, context=128),
        data=config.DataConfig(batch_size=32),
        optimizer=config.OptimizerConfig(learning_rate=2e-3, steps=3000, warmup_steps=100),
        run=config.RunConfig(
            log_every=25,
            eval_every=250,
            eval_tokens=65536,
            final_eval_tokens=0,
            checkpoint_every=250,
        ),
        study=config.StudyConfig(forms=("separate", "merged", "raw"), seeds=(0, 1, 2)),
    )
