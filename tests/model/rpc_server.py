"""An RPC server of llama.cpp on this machine, as its rpc-server is: python -m tests.model.rpc_server PORT"""

import ctypes
import sys

from specd.llama.devices import device_list
from specd.llama.library import C


def main(port: int) -> None:
    """Serve the CPU until killed."""
    library = C._lib
    library.ggml_backend_reg_by_name.restype = ctypes.c_void_p
    library.ggml_backend_reg_get_proc_address.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    library.ggml_backend_reg_get_proc_address.restype = ctypes.c_void_p
    rpc = library.ggml_backend_reg_by_name(b"RPC")
    start = library.ggml_backend_reg_get_proc_address(rpc, b"ggml_backend_rpc_start_server")
    serve = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, *[ctypes.c_size_t] * 2, ctypes.c_void_p)(start)
    serve(f"127.0.0.1:{port}".encode(), None, 1, 1, ctypes.addressof(device_list(["CPU"])))


if __name__ == "__main__":
    main(int(sys.argv[1]))
