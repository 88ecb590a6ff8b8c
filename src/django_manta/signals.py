"""
Our own signals, beside Django's ``task_enqueued``, ``task_started`` and ``task_finished``.

Django's are sent by the executor, while the exception is live. Ours are sent by the worker after
the settlement has committed: ``run_settled`` is the truth. A receiver that raises is logged and
changes nothing.
"""

from django.dispatch import Signal

#: An attempt was settled. Arguments: ``run_id``, ``attempt`` (number), ``outcome``, ``state``.
attempt_finished = Signal()

#: A run reached an end. Arguments: ``run_id``, ``state``.
run_settled = Signal()
