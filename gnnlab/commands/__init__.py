"""The commands of `gnnlab`: a module's docstring is the help, `add_arguments` its options, `run` its work.

Those about notebooks and results are functions of one module. `gnnlab --help` imports all: heavy packages load inside
the functions that need them.
"""
