"""Speed and cost, as ratios inside one run: ``python -m benchmarks [NAME ...]``."""
