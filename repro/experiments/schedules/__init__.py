"""Target ``schedules``: all schedules that the engine executes."""
