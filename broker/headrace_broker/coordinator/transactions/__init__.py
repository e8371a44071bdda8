"""The transaction coordinator as a pure state machine (KIP-98, KIP-360, KIP-890).

One `TransactionShard` per partition of `__transaction_state`. `decide_*` functions read a shard and
a request and return a `TransactionDecision`: the next state of a transactional id, and the
response. They change nothing. The driver appends the state's record. Once it is committed the
driver calls `shard.apply`, or `shard.abandon` if the append failed, and only then sends the
response.
"""
