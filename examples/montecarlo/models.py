"""What the simulations leave behind."""

from django.db import models


class SimulatedYear(models.Model):
    """What one share, bought for 100, had gained or lost after one simulated year."""

    # No unique constraint on purpose: that each year is here exactly once, although the task that writes it
    # is sometimes started twice, is the doing of `atomic=True` alone.
    seed = models.BigIntegerField()
    number = models.PositiveIntegerField(help_text="Counts the years that one seed gave.")
    profit = models.FloatField()

    def __str__(self) -> str:
        return f"{self.profit:+.2f} (seed {self.seed}, year {self.number})"
