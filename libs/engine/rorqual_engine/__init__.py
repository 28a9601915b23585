"""Model execution of Rorqual: models, paged KV, sampling, grammar masks.

Importing this package loads no torch; call `rorqual_engine.device.configure_threads()` first,
then import what is needed:

    from rorqual_engine.batch import SequenceChunk
    from rorqual_engine.grammar import GrammarState, load_tokenizer_info
    from rorqual_engine.kv import PagedKvCache, PageLease
    from rorqual_engine.models import load_model
    from rorqual_engine.sampling import SamplingState, sample
"""
