"""What holds for every test."""

import signal

from hypothesis import settings

# How long an example takes says nothing on a machine that does something else too; pytest's own timeout stays.
settings.register_profile("sparring", deadline=None)
settings.load_profile("sparring")

# A shell starts what runs in the background deaf to Ctrl-C, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
