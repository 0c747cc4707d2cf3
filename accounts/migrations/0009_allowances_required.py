from django.db import migrations, models
from django.db.models.deletion import PROTECT


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0008_allowances_for_what_there_is"),
    ]

    operations = [
        migrations.AlterField(
            model_name="apikey",
            name="allowance",
            field=models.ForeignKey(
                editable=False, on_delete=PROTECT, related_name="api_keys", to="accounts.allowance"
            ),
        ),
        migrations.AlterField(
            model_name="entitlement",
            name="allowance",
            field=models.OneToOneField(
                editable=False, on_delete=PROTECT, related_name="entitlement", to="accounts.allowance"
            ),
        ),
    ]
