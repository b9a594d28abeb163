"""The conformance suite: the whole operation set of every frontend, against numpy as an oracle.

A test is a table of :class:`~tests.conformance.calls.Call`: a world runs it in one go, and
:func:`~tests.conformance.table.check` compares every result of every rank with
:mod:`tests.conformance.oracle`, bit for bit, and names all calls that differ.
"""
