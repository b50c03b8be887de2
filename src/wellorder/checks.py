check_policy=None
