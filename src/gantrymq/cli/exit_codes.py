"""Exit codes of `gantry`: 0 success, 1 failure, 2 invalid command line, and the constants below."""

#: `gantry doctor` found warnings, but no problem.
WARNINGS = 3
#: The command was interrupted (Ctrl-C).
INTERRUPTED = 130
