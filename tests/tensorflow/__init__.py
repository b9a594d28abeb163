"""Tests of ``horovod.tensorflow``."""
