"""Command line: `python -m attention_jax.inspect PATH`."""

import sys

from attention_jax import checks


def main() -> int:
    """Runs the command, if the packages that it prints and draws with are there."""
    try:
        from attention_jax.inspect import command
    except ImportError as error:
        remedy = 'pip install "attention-jax[inspect]"'
        print(f"error: {checks.message('packages', 'all of them', error, remedy)}", file=sys.stderr)
        return 1
    return command.main()


if __name__ == "__main__":
    sys.exit(main())
