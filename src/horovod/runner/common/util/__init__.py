"""The original's paths below ``horovod.runner.common.util``."""
