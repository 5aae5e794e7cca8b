"""What holds for every test."""

from hypothesis import settings

# How long an example takes says nothing on a machine that does something else too; pytest's own timeout stays.
settings.register_profile("sparring", deadline=None)
settings.load_profile("sparring")
