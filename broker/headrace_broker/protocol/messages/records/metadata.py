"""Every record of the metadata log, by its type: the door to the modules beside this one."""

from typing import Final

from headrace_broker.protocol.schema import Message

from .abort_transaction_record import AbortTransactionRecord
from .access_control_entry_record import AccessControlEntryRecord
from .begin_transaction_record import BeginTransactionRecord
from .broker_registration_change_record import BrokerRegistrationChangeRecord
from .clear_elr_record import ClearElrRecord
from .client_quota_record import ClientQuotaRecord
from .config_record import ConfigRecord
from .delegation_token_record import DelegationTokenRecord
from .end_transaction_record import EndTransactionRecord
from .feature_level_record import FeatureLevelRecord
from .fence_broker_record import FenceBrokerRecord
from .no_op_record import NoOpRecord
from .partition_change_record import PartitionChangeRecord
from .partition_record import PartitionRecord
from .producer_ids_record import ProducerIdsRecord
from .register_broker_record import RegisterBrokerRecord
from .register_controller_record import RegisterControllerRecord
from .remove_access_control_entry_record import RemoveAccessControlEntryRecord
from .remove_delegation_token_record import RemoveDelegationTokenRecord
from .remove_topic_record import RemoveTopicRecord
from .remove_user_scram_credential_record import RemoveUserScramCredentialRecord
from .topic_record import TopicRecord
from .unfence_broker_record import UnfenceBrokerRecord
from .unregister_broker_record import UnregisterBrokerRecord
from .user_scram_credential_record import UserScramCredentialRecord
from .zk_migration_state_record import ZkMigrationStateRecord

METADATA_RECORDS: Final[dict[int, type[Message]]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    7: FenceBrokerRecord,
    8: UnfenceBrokerRecord,
    9: RemoveTopicRecord,
    10: DelegationTokenRecord,
    11: UserScramCredentialRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    20: NoOpRecord,
    21: ZkMigrationStateRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    26: RemoveDelegationTokenRecord,
    27: RegisterControllerRecord,
    28: ClearElrRecord,
}

__all__ = [
    "METADATA_RECORDS",
    "AbortTransactionRecord",
    "AccessControlEntryRecord",
    "BeginTransactionRecord",
    "BrokerRegistrationChangeRecord",
    "ClearElrRecord",
    "ClientQuotaRecord",
    "ConfigRecord",
    "DelegationTokenRecord",
    "EndTransactionRecord",
    "FeatureLevelRecord",
    "FenceBrokerRecord",
    "NoOpRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerIdsRecord",
    "RegisterBrokerRecord",
    "RegisterControllerRecord",
    "RemoveAccessControlEntryRecord",
    "RemoveDelegationTokenRecord",
    "RemoveTopicRecord",
    "RemoveUserScramCredentialRecord",
    "TopicRecord",
    "UnfenceBrokerRecord",
    "UnregisterBrokerRecord",
    "UserScramCredentialRecord",
    "ZkMigrationStateRecord",
]
