"""Checks of the benchmark tool itself; they assert no speed."""
