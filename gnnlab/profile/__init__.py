"""How a model is measured: time, memory, FLOPs, scaling, operators, limits, findings.

The names of the profiling framework (S1) can be had from here:

    from gnnlab.profile import RuntimeProfiler, profile_forward, estimate_model_flops, ProfilingContext

They are loaded when they are first asked for, so that what needs no torch does not load it.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "measure.restore": "ProfilingContext set_seed",
    "profile.flops": "FLOPsEstimate FLOPsEstimator estimate_attention_flops estimate_ffn_flops estimate_linear_flops "
    "estimate_model_flops estimate_mpnn_flops estimate_pe_flops",
    "profile.memory": "MemoryProfiler MemoryStats estimate_attention_memory estimate_pe_storage get_memory_breakdown "
    "get_peak_memory profile_memory_usage reset_memory_stats",
    "profile.runtime": "RuntimeProfiler RuntimeStats benchmark_function profile_backward profile_forward "
    "profile_pe_computation profile_training_step",
    "profile.memory_fit": "run_memory_scaling",
    "profile.scaling": "ScalingExperiment generate_scaling_graphs run_layer_scaling run_node_scaling run_pe_scaling",
}
_MODULE_OF = {name: f"gnnlab.{module}" for module, names in _HOME.items() for name in names.split()}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)
