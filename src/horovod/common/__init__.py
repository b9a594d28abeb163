"""The original's import paths for what its frontends share, for scripts that were written against it.

New code finds all of it in the frontends: ``horovod.numpy`` and its siblings. Imports no framework.
"""
