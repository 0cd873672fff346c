"""A longer byte-level comparison on Shakespeare that beats every byte n-gram.

Purpose: the three forms where the model is good enough to tell them apart.
Command: python -m train configs/bytes_char.py
         (one run: python -m train run configs/bytes_char.py model.form=merged run.seed=0)
Hardware: 2 CPU cores, no accelerator.
Measured: separate, seed 0: 37 minutes beside other work on the two cores, 25 or less alone.
Expected: 1.591 held-out nats/byte (separate, seed 0), where the byte 6-gram reaches 1.694.
"""

from train import config


def get_config() -> config.Config:
    """The comparison's settings."""
    return config.Config(
        name="bytes-char",
        model=config.ModelConfig(num_layers=4, width=128, num_heads=4, context=128),
        data=config.DataConfig(batch_size=32),
        optimizer=config.OptimizerConfig(learning_rate=2e-3, steps=3000, warmup_steps=150),
        run=config.RunConfig(
            log_every=10,
            eval_every=300,
            eval_tokens=65536,
            final_eval_tokens=0,
            checkpoint_every=300,
        ),
        study=config.StudyConfig(forms=("separate", "merged", "raw"), seeds=(0, 1, 2)),
    )
