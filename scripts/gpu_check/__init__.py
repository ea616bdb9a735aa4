"""The parts of `python scripts/gpu_check.py`, the report of a GPU.

rows       what is measured, statistics of samples, the file of results
page       the Markdown page, from the file of results alone
cases      graphs, layers, what PyG offers for them and what swap makes of them
checks     are the results right? against PyG in float64
times      how fast are they? variants in turns, memory, CUDA graphs
machine    facts of the machine, and what runs in processes of its own
"""
