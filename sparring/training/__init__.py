"""From trajectories to optimizer steps: sequences, packing, the learner, checkpoints."""
