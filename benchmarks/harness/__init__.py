"""How it is measured: turns, tables, the machine, one vector width for all."""
