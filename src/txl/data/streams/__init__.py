"""Which row of the batch reads which tokens, in which order.

Letters: `B` rows in the batch, `L` tokens in a segment.
"""

from txl.data.streams.base import Batch, OrderedStreams, Streams, longest_segment
from txl.data.streams.orders import STREAM_ORDERS, DocumentStreams, border_places, border_text
