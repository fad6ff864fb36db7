"""llama.cpp: the only package that imports llama_cpp, and only when something in it is used."""
