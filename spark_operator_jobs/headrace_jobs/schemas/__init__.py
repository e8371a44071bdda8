"""Values with a schema: JSON, Avro and Protobuf, with a registry's header or without.

`decode` adds two columns to a source's frame, `decoded` (the job's own columns, as a struct) and
`reason` (why a record cannot be decoded; null if it was). A broken record or an unknown schema
never stops a job: `set_aside` makes them dead letters. A registry that does not answer does fail
the batch: its records are not broken.
"""
