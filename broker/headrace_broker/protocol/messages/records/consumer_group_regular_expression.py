"""ConsumerGroupRegularExpression, a coordinator's record (type 16).

The topics that a subscribed regular expression matches.
"""

from dataclasses import field
from typing import Annotated

from headrace_broker.protocol.schema import Array, Int64, Message, String, message


@message(api_key=16, versions="0")
class ConsumerGroupRegularExpressionKey(Message):
    """Key of the record that says the topics that a subscribed regular expression matches."""

    group_id: Annotated[str, String("0")] = ""
    regular_expression: Annotated[str, String("0")] = ""


@message(api_key=16, versions="0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Message):
    """Value of the record that says the topics that a subscribed regular expression matches."""

    topics: Annotated[list[str], Array("0+", of=String)] = field(default_factory=list)
    version: Annotated[int, Int64("0+")] = 0
    timestamp: Annotated[int, Int64("0+")] = 0
