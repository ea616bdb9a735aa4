"""Every stage measured on every unit, each cell in a process that may die, with nothing lost."""
