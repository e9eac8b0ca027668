"""What happens between the steps: checkpoints, progress, divergence, interruption, profiling."""
