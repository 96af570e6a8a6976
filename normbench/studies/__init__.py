"""Studies: experiments around or on a run, each a class in a file of its own and a YAML; `sample` is not a study."""

from normbench.config.groups import options

STUDIES = options("study")  # their lines, by their words on the command line
