"""The commands of the command line, a module each: `add_arguments` says what one takes, `run` does it.

In come parsed arguments, out goes an exit status. `ferrite_torch.__main__` lists them, and
`ferrite_runtime.command_line` imports each by its name.
"""
