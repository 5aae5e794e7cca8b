"""Open, self-hosted multi-turn reinforcement learning for language-model agents."""
