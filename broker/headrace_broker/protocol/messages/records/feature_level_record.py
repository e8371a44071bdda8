"""FeatureLevelRecord, a metadata record (type 12): the finalized level of a feature."""

from typing import Annotated

from headrace_broker.protocol.schema import Int16, Message, String, message


@message(api_key=12, versions="0", flexible="0+")
class FeatureLevelRecord(Message):
    """Says the finalized level of a feature."""

    name: Annotated[str, String("0+")] = ""
    feature_level: Annotated[int, Int16("0+")] = 0
