"""A lab that only records, for tests of the rows that a notebook of stages leaves in the one table."""

from gnnlab.lab import claims, claims_report
from gnnlab.lab.session import Lab
from gnnlab.lab.table import Table


class Recorder(Lab):
    """`record` and `count` as in a notebook, into a table of its own."""

    def __init__(self):
        self.table, self.environment = Table(), {"devices": []}

    def judge(self, id):
        """What this table says of a claim: the figure, and its verdict. Raises `Untestable`."""
        claim = claims.catalogue()[id]
        found = claims.evaluate(claim, self.table)
        return found, claims_report._judged(claim, [self.table]).verdict.value
