from django.db import models


class Ledgerline(models.Model):
    """What a task wrote: tests count these to see how often its effects took place."""

    label = models.CharField(max_length=200)
    amount = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.label}: {self.amount}"
