"""The numpy frontend, which is also the conformance suite of the engine."""
