"""The transaction coordinator as a pure state machine (KIP-98, KIP-360, KIP-890).

One `TransactionShard` per partition of `__transaction_state`. `decide_*` functions look at a shard
and a request and return a `TransactionDecision`: the state that a transactional id is to have, and
what to answer. They change nothing. The driver appends the state's record; once that is committed
it hands the state to `shard.apply`, or to `shard.abandon` when the append failed, and only then
answers.
"""
