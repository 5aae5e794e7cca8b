"""Load a policy, adapt it, run it forward. The only room that knows transformers and peft."""
