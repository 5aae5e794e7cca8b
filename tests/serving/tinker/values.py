"""What the tests train on, in this process and in the client's."""

IDS = [5, 40, 77, 9, 120, 33, 6, 80]
SAMPLED = [-5.0, -5.5, -4.0, -6.0, -5.2, -5.9, -5.1]
ADVANTAGES = [0.0, 1.0, -0.5, 2.0, -1.0, 0.5, 1.5]
CLIPS = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
LOSSES = {"cross_entropy": None, "importance_sampling": None, "ppo": CLIPS, "cispo": CLIPS, "dro": {"beta": 0.05}}
