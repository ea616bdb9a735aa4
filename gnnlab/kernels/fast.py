"""The fast form of a layer or of a model that the lab knows.

layer = fast(GATConv(64, 128, heads=4))
"""

from __future__ import annotations

from typing import Any

from torch import nn

from gnnlab.errors import GnnlabError
from gnnlab.kernels import layers
from gnnlab.kernels.symptom_encoder import FastSymptomEncoder
from gnnlab.kernels.transformer import FastGraphTransformer
from gnnlab.workloads.graph_transformer import GraphTransformer
from gnnlab.workloads.symptom_gat import SymptomGAT

FORMS = {**layers.FAST, SymptomGAT: FastSymptomEncoder, GraphTransformer: FastGraphTransformer}


def fast(module: nn.Module, *options: Any, **named: Any) -> nn.Module:
    """A module that computes what `module` does, from its own parameters, in less time.

    Options are those of the form: `form` (auto|bag|dense) of a GATConv, `precision` (float32|bfloat16) of a SAGEConv.
    A whole model of other layers: `gnnlab.rewrite.swap`.

    Raises:
        GnnlabError: the lab has no fast form of such a module, or not with its options.
    """
    if type(module) not in FORMS:
        known = ", ".join(kind.__name__ for kind in FORMS)
        given = type(module).__name__
        raise GnnlabError(f"no fast form of {given}; there is one of {known}. For a model use gnnlab.rewrite.swap")
    return FORMS[type(module)](module, *options, **named)
