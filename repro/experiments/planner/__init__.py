"""Target ``plan``: the planner's predictions beside measured steps."""
