"""LLVM: assembly written line by line, made into machine code for this processor, and kept on disk."""
