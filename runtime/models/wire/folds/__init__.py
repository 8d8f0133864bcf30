"""One module for each wire: the chunks of its stream, folded into the answer that is not streamed."""
