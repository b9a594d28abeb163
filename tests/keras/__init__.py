"""Tests of ``horovod.keras``."""
