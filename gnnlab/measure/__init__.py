"""How the lab measures: times of interleaved calls, results compared first, and intervals of what was seen."""
