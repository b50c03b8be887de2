"""Exact per-example gradients, layer by layer, and their products without the gradients themselves."""
