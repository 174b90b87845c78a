"""What embedding uncertainty buys, and what it costs, at matched token budgets."""
