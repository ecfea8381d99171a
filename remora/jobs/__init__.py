"""The handlers of the supervisor's queues."""
