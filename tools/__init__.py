"""Tools around the package: benchmarks, and what makes its data files."""
