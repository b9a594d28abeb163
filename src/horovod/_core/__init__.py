"""What every frontend shares: the runtime of this process and the operations on it. Knows no framework."""
