"""
What the project's own work costs, against the plainest way to do the same.

Every figure is a ratio to a limit measured in the same run, in turns with ours: machines differ and
are noisy, and only ratios can be compared. ``python -m benchmarks --help``; ``docs/benchmarks.md``
says what each figure means.
"""
