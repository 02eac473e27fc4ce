"""The parts of ``benchmarks/run.py``: what is timed, against whom, how, and how it is shown."""
