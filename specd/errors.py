"""What can go wrong, as one tree.

SpecdError                  could not do it
├── UsageError              the request itself is wrong
├── ModelNotAvailable       no usable file
│   ├── UnknownModel        no such name
│   ├── OfflineError        not here, and offline was asked for
│   ├── GatedError          the hub wants a token or an accepted licence
│   ├── NoSuchFile          the source does not have it
│   ├── IncompleteShards    some parts of a split model are missing
│   ├── ChecksumMismatch    the bytes are not the ones expected
│   ├── NoSpace             the disk is too full
│   ├── LockTimeout         another process is fetching it and does not finish
│   └── DownloadFailed      the source broke off or could not be reached
├── PromptTooLong           does not fit into the context
├── EngineError             llama.cpp refused or failed
│   └── CannotRewind        the model's memory cannot go back
└── Interrupted             stopped on request while llama.cpp was computing

A message says what was asked, what was found and what to do, in one line. Only `specd.cli.app` turns these
into text and exit codes.
"""


class SpecdError(Exception):
    """Could not do what was asked."""


class UsageError(SpecdError):
    """The request itself is wrong."""


class ModelNotAvailable(SpecdError):
    """There is no usable file for the model asked for."""


class UnknownModel(ModelNotAvailable):
    """No model, pair or file has this name."""


class OfflineError(ModelNotAvailable):
    """The file is not in the cache and offline mode forbids fetching it."""


class GatedError(ModelNotAvailable):
    """The hub gives this file only to people with a token or an accepted licence."""


class NoSuchFile(ModelNotAvailable):
    """The source was reached and does not have the file."""


class IncompleteShards(ModelNotAvailable):
    """Some parts of a split model are missing."""


class ChecksumMismatch(ModelNotAvailable):
    """The bytes are not the ones that were expected."""


class NoSpace(ModelNotAvailable):
    """The disk has too little room for the file."""


class LockTimeout(ModelNotAvailable):
    """Another process is fetching the file and did not finish in time."""


class DownloadFailed(ModelNotAvailable):
    """The source could not be reached or broke off."""


class PromptTooLong(SpecdError):
    """The prompt does not fit into the context."""


class EngineError(SpecdError):
    """llama.cpp refused or failed."""


class CannotRewind(EngineError):
    """The model's memory cannot go back to an earlier position."""


class Interrupted(SpecdError):
    """llama.cpp was stopped on request in the middle of its work."""
