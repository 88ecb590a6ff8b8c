"""What the order and the import of sales work on."""

from django.db import models


class Item(models.Model):
    name = models.CharField(max_length=100)
    stock = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    class Status(models.TextChoices):
        PLACED = "placed"
        SHIPPED = "shipped"
        CANCELLED = "cancelled"

    item = models.ForeignKey(Item, on_delete=models.PROTECT)
    quantity = models.PositiveIntegerField()
    price = models.PositiveIntegerField()
    address = models.CharField(max_length=200, blank=True)
    paid = models.PositiveIntegerField(default=0)
    status = models.CharField(max_length=20, choices=Status.choices, default=Status.PLACED)

    def __str__(self) -> str:
        return f"{self.quantity} {self.item}"


class Sale(models.Model):
    day = models.DateField()
    shop = models.CharField(max_length=50)
    amount = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.amount} in {self.shop}"


class Takings(models.Model):
    """What all sales of a shop on a day add up to."""

    day = models.DateField()
    shop = models.CharField(max_length=50)
    amount = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "shop"], name="workflows_takings_once")]

    def __str__(self) -> str:
        return f"{self.shop} {self.day}: {self.amount}"
