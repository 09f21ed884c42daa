"""What a process is given: options of the user, environment variables, files that people name, forks.

In come plain values, out go checked ones. Every folder above asks; nothing here knows what a kernel is.
"""
