"""Separate, merged and raw attention on Shakespeare, three paired seeds each.

Purpose: a first fair comparison in minutes: same function at the start, same batches, same rate.
Command: python -m train configs/quick.py
Hardware: 2 CPU cores, no accelerator.
Measured: 2.5 minutes, of which 10 to 16 seconds a run are training.
Expected: held-out nats/byte about 2.05 separate and merged (difference not resolved with 3 seeds),
2.54 raw; byte n-grams reach 2.535 (2-gram) and 2.077 (3-gram).
"""

from train import config


def get_config() -> config.Config:
    """The comparison's settings."""
    return config.Config(
        name="quick",
        model=config.ModelConfig(num_layers=2, width=64, num_heads=4, context=64),
        data=config.DataConfig(batch_size=16),
        optimizer=config.OptimizerConfig(learning_rate=3e-3, steps=1000, warmup_steps=50),
        run=config.RunConfig(
            log_every=20,
            eval_every=200,
            eval_tokens=32768,
            final_eval_tokens=131072,
            checkpoint_every=1000,
        ),
        study=config.StudyConfig(forms=("separate", "merged", "raw"), seeds=(0, 1, 2)),
    )
