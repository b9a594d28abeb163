"""Tests of how ranks find each other."""
