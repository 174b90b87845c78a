"""Which steps, in what order? Learned planners over workflows, against fixed workflows and one another."""
