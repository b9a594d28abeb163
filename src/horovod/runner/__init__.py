"""Starting jobs: ``horovodrun`` and, later, ``horovod.run``. Loads no native code and no framework."""
