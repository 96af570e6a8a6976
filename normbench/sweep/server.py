"""Readies the process from which runs are forked; that process imports this first.

It ends when the command that started it ends. Otherwise, after a kill of the command, it would first load all of torch,
and only then notice that the command is gone. The runs that it has forked are not ended by this: they notice it by
themselves, and write a checkpoint.

What it loads is never garbage: Python's collector need not look for some here, and a run leaves it out.
"""

import gc
import os

from normbench.processes import end_with_parent

end_with_parent(os.getppid())
gc.disable()
