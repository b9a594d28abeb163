"""A chaos harness: faults scripted by rank, operation and step, and a judge of the survivors' story.

``script``      what is to happen, as plain data
``operations``  collective operations that check themselves
``deeds``       how each kind of fault is done
``rank``        the program that the ranks run; ``story`` is what it writes
``nursery``     forks ranks from one process, quickly
``stage``       plays a script and gathers what came of it
``remains``     what a job has left behind
``judge``       whether the story is a good one (pure)

``python -m tests.support.chaos --minutes 10`` plays random scripts.
"""
