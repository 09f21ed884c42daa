"""Kernel forms, a module for each, or for a few that are alike: in comes a kernel's spec, out go its configs and rules.

A module's ``FORMS`` are the forms that it adds. `formats.facts` finds all modules of this folder when the first spec is
read, as Python finds codecs in `encodings`; nobody lists them. Everything that a form brings stands in its module: its
configs, what foresees that one fails, the record of its facts where no other form has it.
"""
