"""The speculative decoding loop and what it is made of: pure numpy, no I/O."""
