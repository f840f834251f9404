"""Exit codes of `gantry`: 0 done, 1 failed, 2 the command line can't be understood, and these."""

INTERRUPTED = 130
