"""Models: load a policy, adapt it, and run its forward pass. This is the only package that uses transformers and
peft."""
