"""The commands of the command line, a module each: `add_arguments` says what one takes, `run` does it.

In come parsed arguments, out go an exit status and text or JSON. `ferrite_runtime.__main__` lists the commands, and
`command_line` imports each by its name. `cache` has commands of its own in `cache_contents`, `cache_misses`,
`cache_serving`, `cache_store` and `cache_transfer`; `measuring`, `output`, `programs` and `targets` are what several
commands share.
"""
