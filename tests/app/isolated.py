"""Tasks whose transactions meet others."""

from contextlib import closing
from typing import Any

from django.db import connection, connections

from django_manta import TaskContext, task
from django_manta.ledger import Ledger, own_session
from django_manta.models import Run
from tests.app.models import Ledgerline


def from_elsewhere(sql: str, *params: Any) -> None:
    """What another connection writes, and commits at once."""
    with closing(connections["default"].copy()) as other, other.cursor() as cursor:
        cursor.execute(sql, params)


@task(atomic=True)
def lose_conflicts(times: int, at: str) -> int:
    """Lose a conflict in the task's own statement, or in the settlement, this often."""
    with connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    from_elsewhere("INSERT INTO testapp_ledgerline (label, amount) VALUES ('start', 0)")
    starts = Ledgerline.objects.filter(label="start").count()
    if starts <= times and at == "settlement":
        from_elsewhere("UPDATE manta_run SET reason = reason")
    elif starts <= times:
        from_elsewhere("UPDATE testapp_ledgerline SET amount = amount + 1 WHERE label = 'shared'")
        Ledgerline.objects.filter(label="shared").update(amount=-1)
    Ledgerline.objects.create(label="effect")
    return starts


@task(atomic=True, takes_context=True)
def tell_and_write(context: TaskContext, fails: bool = False) -> list[Any]:
    """Tell how it goes, while its transaction is open. What others could see of that."""
    from_elsewhere("INSERT INTO testapp_ledgerline (label, amount) VALUES ('start', 0)")
    Ledgerline.objects.create(label="effect")
    context.progress(1, 2, "half")
    context.metadata["told"] = True
    context.save_metadata()
    with closing(own_session()) as session:
        [record] = Ledger(session).fetch([Run.objects.values_list("id", flat=True).get(pk=context.run_id)])
    if fails:
        raise ValueError("after it has told")
    return [record.progress is not None, "told" in record.metadata]
