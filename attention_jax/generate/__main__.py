"""Command line: `python -m attention_jax.generate PATH --prompt TEXT`."""

import sys

from attention_jax.generate import command

if __name__ == "__main__":
    sys.exit(command.main())
