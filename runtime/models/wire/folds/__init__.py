"""One module for each wire: it assembles the chunks of a stream into the response that is not streamed."""
