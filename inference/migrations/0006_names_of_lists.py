from django.db import migrations


class Migration(migrations.Migration):
    """What the admin calls its lists. Nothing changes in the database."""

    dependencies = [("inference", "0005_published_prefix")]

    operations = [
        migrations.AlterModelOptions(
            name="languagemodel", options={"ordering": ["name"], "verbose_name": "model"}
        ),
    ]
