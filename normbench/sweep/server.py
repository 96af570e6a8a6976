"""Ends the process from which runs are forked when the command that started it ends; that process imports this first.

Otherwise, after a kill of the command, it would first load all of torch, and only then notice that the command is gone.
The runs that it has forked are not ended by this: they notice it by themselves, and write a checkpoint.
"""

import os

from normbench.processes import end_with_parent

end_with_parent(os.getppid())
