"""What the process from which runs are forked loads before all else: it ends with the command that has started it.

Without that it would load torch to its end after a kill, and only then see that nobody is there. Runs that it has
forked are not ended by this: they see by themselves that the command has gone, and write a checkpoint.
"""

import os

from normbench.processes import end_with_parent

end_with_parent(os.getppid())
