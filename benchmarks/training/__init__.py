"""Training steps with gradients reduced by Khorovod, by DDP, and not at all. See benchmarks/README.md."""
