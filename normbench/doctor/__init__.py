"""Whether this machine has what normbench needs, and what to do where something is missing or broken.

Nothing that may be broken is imported here. Libraries, number formats, the compiler, the hub and a tiny training are
tried in processes of their own, which may die or hang.
"""

from __future__ import annotations

from normbench.doctor.examination import examine
from normbench.doctor.findings import Problem, Section

__all__ = ["Problem", "Section", "examine"]
