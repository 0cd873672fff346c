"""Every part of a comparison in seconds.

Purpose: tests, and a first look at what a comparison leaves behind.
Command: python -m train configs/smoke.py
Hardware: 2 CPU cores, no accelerator.
Measured: 0.4 minutes, nearly all of it compilation.
Expected: held-out nats/byte about 3.3 for every form: nothing is learned but byte frequencies.
"""

from train import config


def get_config() -> config.Config:
    """The comparison's settings."""
    return config.Config(
        name="smoke",
        model=config.ModelConfig(num_layers=1, width=16, num_heads=2, context=16),
        data=config.DataConfig(batch_size=8),
        optimizer=config.OptimizerConfig(learning_rate=1e-2, steps=40, warmup_steps=5),
        run=config.RunConfig(
            log_every=10,
            eval_every=20,
            eval_tokens=2048,
            final_eval_tokens=2048,
            checkpoint_every=20,
        ),
        study=config.StudyConfig(forms=("separate", "merged", "raw"), seeds=(0, 1)),
    )
