from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('manta', '0004_cancelling'),
    ]

    operations = [
        migrations.AddField(
            model_name='worker',
            name='ray',
            field=models.TextField(db_default='', help_text='The Ray that it gives runs to: its session, and the namespace there.', verbose_name='Ray'),
        ),
        migrations.AddField(
            model_name='worker',
            name='ray_address',
            field=models.TextField(db_default='', help_text='Where the settings say that this Ray is, and the namespace.', verbose_name='address of Ray'),
        ),
    ]
