"""Tests of what every frontend shares."""
