"""The lab's own answer to S0: the symptom encoder has no input, so its output is kept while its weights stay the same.

Each call compares all weights with copies of them: that is most of its time.
"""

import copy

from gnnlab.optimize.steps import constant_output
from gnnlab.workloads import graphs, models

before = models.build("symptom_gat", graphs.of_size("58x776", 64)).model.eval()
after = constant_output(copy.deepcopy(before), 32)
inputs = {"batch_size": 32}
claim = "at least 5x"
