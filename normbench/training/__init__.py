"""The training loop and what it needs: optimizer, schedule, evaluation, guard, checkpoint, clock."""
