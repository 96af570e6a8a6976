"""Runs a command of normbench as one of torchrun's processes: in a session of its own, it yet ends with torchrun."""

import os
import sys

from normbench.cli import main
from normbench.processes import end_with_parent

end_with_parent(os.getppid())
sys.exit(main())
