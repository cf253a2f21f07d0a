"""Models as small as these are slower on two threads, and the machine may be shared."""

from threads import one_thread

__all__ = ["one_thread"]
