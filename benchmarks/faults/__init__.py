"""What failures cost a training in time."""
