"""What the tests share: worlds of worker processes, the numpy oracle."""
