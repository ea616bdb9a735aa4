"""A machine whose clock we own: variants take the time that we say, with noise that we plant. Nothing sleeps."""

import numpy as np


class Machine:
    """`machine.clock` tells simulated seconds; calling a `machine.variant(ms)` advances it by about that long.

    `spread` is the standard deviation of log time, `spikes` the share of calls that another tenant delays by 20 to
    200 %, `drift` a function of simulated time that multiplies every duration.
    """

    def __init__(self, seed, spread=0.03, spikes=0.05, drift=lambda t: 1.0):
        self.random = np.random.default_rng(seed)
        self.spread, self.spikes, self.drift = spread, spikes, drift
        self.now = 0.0

    def clock(self):
        return self.now

    def variant(self, ms):
        def run():
            duration = ms / 1e3 * self.drift(self.now) * np.exp(self.random.normal(0, self.spread))
            if self.random.random() < self.spikes:
                duration *= self.random.uniform(1.2, 3)
            self.now += duration

        return run


def step(at_s, factor):
    """The machine is `factor` times slower from `at_s` on."""
    return lambda t: factor if t >= at_s else 1.0


def ramp(over_s, factor):
    """The machine gets steadily slower, to `factor` times after `over_s`."""
    return lambda t: 1 + (factor - 1) * min(t / over_s, 1)
