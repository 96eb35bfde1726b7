"""Benchmarks: curtsy as users get it, beside its fastest configuration and its peers, in the same run."""
