"""Benchmarks: one module for each part of wheeldb, each runnable by itself.

Run one from the checkout, for instance ``python -m tools.bench.wheel``; ``--help`` says
what it measures. Each prints one table, or the same as JSON with ``--json``.

A machine is noisy and no two are alike, so a benchmark measures what it compares in the
same run, by turns, and its result is a *ratio*. Absolute figures stand beside it to be
read as orders of magnitude. Benchmarks are not tests: nothing fails by being slow.
"""
