"""Tests of ``horovod.torch``; the oracle is plain torch."""
