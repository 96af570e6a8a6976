"""Studies: experiments around or on a run, each a class in a file of its own and a YAML.

`frame` says what a study is, and `study` makes one. `findings` compares what was measured, `writing` puts it into
sentences and tables, `figures` draws it, `answers` has it as values, and `saving` writes all of that to a folder.
Several studies measure with `steps`, `timing`, `candidates` or `fx_graph`. `sample` is not a study.
"""

from normbench.config.groups import options

STUDIES = options("study")  # their lines, by their words on the command line
