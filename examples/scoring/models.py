"""What is scored."""

from django.db import models


class Review(models.Model):
    """What a guest wrote. The score is between 0 (never again) and 1, and None until the model has read it."""

    text = models.TextField()
    score = models.FloatField(null=True)

    def __str__(self) -> str:
        return self.text
