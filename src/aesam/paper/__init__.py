"""Every table, figure and theorem of the paper, made from training runs."""
