"""The commands of the command line, a module each: `add_arguments` says what one takes, `run` does it.

In come parsed arguments, out goes an exit status. `ferrite_runtime.command_line` imports a command by its name.
"""
