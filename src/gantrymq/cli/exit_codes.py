"""Exit codes of `gantry`: 0 done, 1 failed, 2 the command line can't be understood, and these."""

#: `gantry doctor` found warnings and no problem.
WARNINGS = 3
INTERRUPTED = 130
