"""Fills the values of other runs into the arguments of this one, once they are verified."""

from typing import Any

from django_manta import payload
from django_manta.exceptions import BadTaskSignature
from django_manta.execution.admission import Admitted
from django_manta.ledger import DjangoSession, Ledger, Value, values


def fill_in(admitted: Admitted) -> None:
    """Raise BadTaskSignature for a value that its executor did not sign."""
    claim = admitted.claim
    if claim.references is None:
        return
    given = claim.values or _fetch(admitted)
    seal = admitted.backend.seal

    def read(run_id: str) -> Any:
        value = given.get(run_id.replace("-", ""))
        if value is None:
            raise LookupError(f"Run {run_id}, whose value run {claim.id} was given, is not there or did not succeed.")
        return _verified(seal, run_id, value)

    payload.fill_in(admitted.args, admitted.kwargs, claim.references, lambda run_id: payload.unfold(run_id, read))


def _verified(seal: payload.Seal, run_id: str, value: Value) -> Any:
    if value.delegate is not None:
        if not seal.delegate_is_genuine(value.signature, run_id, value.delegate):
            raise BadTaskSignature(f"To whom run {run_id} delegated is not what its executor signed.")
        return payload.Pointer(payload.decode(value.delegate))
    if value.result is None or not seal.result_is_genuine(value.signature, run_id, value.result):
        raise BadTaskSignature(f"The value of run {run_id} is not the one that its executor signed.")
    return payload.decode(value.result)


def _fetch(admitted: Admitted) -> dict[str, Value]:
    """What was too much to be carried along."""
    ledger = Ledger(DjangoSession(admitted.backend.database))
    return values.fetch(ledger, values.referred_to(admitted.claim.references or "[]"), limit=None)
