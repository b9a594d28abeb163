"""The numpy frontend: forms, handles, outputs, misuse. tests/conformance proves the whole operation set."""
