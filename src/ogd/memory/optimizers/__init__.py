"""Optimizers under protection: their step hooks, their pace, and the notice of weights that moved without one."""
