"""The commands of the command line, a module each: `add_arguments` says what one takes, `run` does it."""
