"""The commands of `gnnlab`, one module each: its docstring is the help, `add_arguments` its options, `run` its work.

`gnnlab --help` imports every module: heavy packages load inside the functions that need them.
"""
