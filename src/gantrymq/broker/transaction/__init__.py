"""Transaction messages: halves, their ends, and the questions to their producers."""
