import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnlab.optimize.training.losses import FORMS
from gnnlab.workloads import deepfm
from gnnlab.workloads.tables import Target


@settings(max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from(["classes", "labels"]), st.integers(2, 5)), min_size=1, max_size=4),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_all_forms_give_the_loss_of_the_study_and_its_gradients(kinds, rows, seed):
    random = torch.Generator().manual_seed(seed)
    specs = [Target(f"t{i}", kind, size) for i, (kind, size) in enumerate(kinds)]
    outputs = {s.name: torch.randn(rows, s.size, dtype=torch.float64, generator=random).requires_grad_() for s in specs}
    targets = {
        s.name: torch.randint(s.size, (rows,), generator=random)
        if s.kind == "classes"
        else torch.randint(2, (rows, s.size), generator=random).double()
        for s in specs
    }
    log_variances = torch.randn(len(specs), dtype=torch.float64, generator=random).requires_grad_()
    parts = [*outputs.values(), log_variances]
    expected = deepfm.weighted(torch.stack(deepfm.target_losses(outputs, targets, specs)), log_variances)
    gradients = torch.autograd.grad(expected, parts)
    for form in FORMS.values():
        loss = form(outputs, targets, specs, log_variances)
        torch.testing.assert_close(loss, expected)
        torch.testing.assert_close(torch.autograd.grad(loss, parts), gradients)
