"""Tests of the original's import paths."""
