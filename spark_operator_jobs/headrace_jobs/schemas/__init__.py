"""Values with a schema: JSON, Avro and Protobuf, with a registry's header or without.

`decode` adds two columns to a source's frame, `decoded` (the job's own columns, as a struct) and
`reason` (why a record cannot be decoded; null when it was). A broken record or an unknown schema
never stops a job: `set_aside` is what a job's dead letters are made of. A registry that does not
answer does stop the batch: its records are not broken.
"""
