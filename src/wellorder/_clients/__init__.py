"""Who takes part, and when: the part of client ordering that needs no federated framework."""
