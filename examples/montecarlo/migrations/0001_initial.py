from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="SimulatedYear",
            fields=[
                (
                    "id",
                    models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"),
                ),
                ("seed", models.BigIntegerField()),
                ("number", models.PositiveIntegerField(help_text="Counts the years that one seed gave.")),
                ("profit", models.FloatField()),
            ],
        ),
    ]
