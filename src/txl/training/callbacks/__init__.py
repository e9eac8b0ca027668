"""Lightning callbacks: checkpoints, progress, divergence, interruption, profiling."""
