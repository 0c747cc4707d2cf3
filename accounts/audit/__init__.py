"""The proof of who was given what, when and by whom: an append-only chain of events, one for the installation.

Every verb that writes calls ``record`` last in its own transaction. Lane assignments are too many for that: they are
sealed in batches, and each batch's root is an event. What is in the chain is never changed, and ``verification`` finds
where it was.

====================  ==================================================================================
``recording``         appends events, in the transaction of the change
``values``            what may stand in one: no secret, and of people a commitment
``contents``          what of a row is hashed; ``canonical`` how; ``merkle`` the trees over batches
``sealing``           lane assignments into batches; ``batches`` what one says of itself
``triggers``          the database refuses to change what is chained
``verification``      walks the chain and names the first thing that is wrong: ``chain_walk``, with ``chain_rows`` to
                      read it by (in ``row_pages``, each value in its ``written_forms``), and on its way
                      ``chain_ends``, ``event_checks``, ``batch_checks``, ``archive_vouching``, ``archive_checks``,
                      ``archive_leftovers``, ``archived_generations``, ``accepted_generations``, ``checkpoint_checks``
                      and ``storage_checks``; ``faults`` that they find
``checkpoints``       the head, signed; ``signing_keys`` what with; ``checkpoint_lines`` how they are written down
                      outside, where ``anchors`` brings them
``settings``          how often the head is signed, when old records are archived
``export``            records with proofs for somebody who does not trust us, of a ``selection``; ``offline`` has the
                      script that checks them
``archives``          old segments in files, in the same ``lines``; ``archive_files`` writes and reads them, ``stored``
                      reads the chain from wherever it lies
``erasure``           a person's data out of the audit, the chain as it was
``reading``           events with the names that stand beside them; ``actions`` what they are called, ``names`` what
                      ids are, ``history`` what was told of a thing until a time
``lane_decisions``    why a generation ran in its lane; ``lane_rights`` who may use a lane, ``lane_use`` who did, both
                      by ``entitlement_records``; ``assignment_proofs`` whether a record is what was sealed
====================  ==================================================================================
"""

from accounts.audit.recording import Change, ObjectRef, fields_of, record, record_all, reference_of
from accounts.audit.values import AuditError

__all__ = ["AuditError", "Change", "ObjectRef", "fields_of", "record", "record_all", "reference_of"]
