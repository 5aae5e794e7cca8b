"""Models: load a policy, adapt it, and run it forward. The only package that uses transformers and peft."""
