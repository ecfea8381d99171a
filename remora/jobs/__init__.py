"""What the supervisor's queues do."""
