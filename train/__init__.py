"""Training, comparison and report of the attention forms: run from the repository's root.

`python -m train configs/quick.py` trains every form with paired seeds and writes the report.
This package imports nothing here, so that `train.report` needs neither JAX nor a device.
"""
