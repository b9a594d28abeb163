"""Launchers, one file each, behind one small interface."""
