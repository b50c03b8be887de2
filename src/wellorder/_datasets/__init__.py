"""Data to train on and networks to train: official data sets, who holds what, and the experiments' models."""
