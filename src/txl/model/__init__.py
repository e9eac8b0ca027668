"""The model, in pure torch: read this package alone to understand the paper.

`memory.py` is the recurrence (§3.2), `positions/relative.py` the relative positional encoding (§3.3),
`attention.py` attention with both, `transformer.py` the whole model (§3.4, Appendix B) and `embedding.py`
input embedding and output softmax. `cost.py` counts parameters, arithmetic and memory.

Letters in the names of tensors and in docstrings, everywhere in this package:
`B` rows in the batch, `L` tokens in a segment, `M` memory slots, `K = M + L` keys, `D` d_model, `H` heads,
`C` d_head, `N` layers, `V` vocabulary. Batch first. `scores_BHLK` is a tensor of that shape.
"""

from txl.model.embedding import TiedEmbedding
from txl.model.memory import Memory
from txl.model.positions.alibi import AlibiPosition
from txl.model.positions.base import PositionEncoding
from txl.model.positions.learned import LearnedPosition
from txl.model.positions.relative import RelativePosition
from txl.model.positions.rotary import RotaryPosition
from txl.model.positions.shaw import ShawPosition
from txl.model.positions.sinusoidal import SinusoidalPosition
from txl.model.positions.t5 import T5Position
from txl.model.transformer import TransformerXL
