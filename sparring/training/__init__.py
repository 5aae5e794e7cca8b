"""Training: from trajectories to optimizer steps, with sequences, packing, the learner and checkpoints."""
