import torch

from gnnlab.optimize.training.loss_record import READ_STEPS, LossRecord, first_bad


def test_steps_are_read_once_with_the_losses_of_their_micro_batches():
    record = LossRecord(5, 7, "cpu")
    for losses in ([1.0, 2.0], [3.0, 4.0]):
        for loss in losses:
            record.add(torch.tensor(loss))
        record.end_step()
    assert record.due and list(record.new()) == [(7, [1.0, 2.0]), (8, [3.0, 4.0])]
    assert not record.due and list(record.new()) == []
    record.add(torch.tensor(5.0))
    record.end_step()
    assert list(record.new()) == [(9, [5.0])]


def test_a_device_that_is_waited_for_is_read_seldom():
    record = LossRecord(READ_STEPS, 0, "meta")
    for step in range(READ_STEPS):
        assert record.due == (step >= READ_STEPS)
        record.end_step()
    assert record.due


def test_the_first_bad_loss_is_found():
    assert first_bad([1.0, float("inf"), float("nan")]) == 1 and first_bad([0.0]) is None
