"""A Flower app whose clients take turns in a policy's order."""
