"""Whether one model can draft for another."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from specd.llama.engine import Engine, file_identity
from specd.llama.vocab import Vocabulary

FIRST_COMPARED = 5  # ids below hold special tokens that models of one family spell differently
CLEARLY_SMALLER = 0.6  # a draft of more than this share of the target's bytes can hardly pay
_FORMAT = 1  # of the cached verdicts; raise it when the rules change


@dataclass(frozen=True, slots=True)
class Pairing:
    """num_shared: ids below mean the same in both models. reason: why they do not fit, None when they do."""

    num_shared: int
    reason: str | None


def compare_vocabularies(target: Vocabulary, draft: Vocabulary) -> Pairing:
    """Compare two vocabularies by kind, special ids and token spellings (0.2 s for 150 000 tokens).

    Different sizes are fine: the ids that only one model has, often padding, are never shared.
    """
    num_shared = min(target.size, draft.size)
    if target.kind != draft.kind:
        return Pairing(0, "their tokenizers are of different kinds")
    for name in ("bos", "eos"):
        ids = getattr(target, name), getattr(draft, name)
        if ids[0] != ids[1]:
            return Pairing(0, f"their {name.upper()} tokens differ: {ids[0]} and {ids[1]}")
    for token in range(FIRST_COMPARED, num_shared):
        spellings = target.spelling(token), draft.spelling(token)
        if spellings[0] != spellings[1]:
            a, b = (spelling.decode("utf-8", "replace") for spelling in spellings)
            return Pairing(0, f"their vocabularies differ: token {token} is {a!r} and {b!r}")
    return Pairing(num_shared, None)


def pair(target: Engine, draft: Engine, cache: Path) -> Pairing:
    """`compare_vocabularies`, with the verdict kept in the folder `cache` by file and file date."""
    key = json.dumps([_FORMAT, file_identity(target.path), file_identity(draft.path)])
    file = cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
    try:
        return Pairing(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        verdict = compare_vocabularies(target.vocabulary, draft.vocabulary)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(verdict)))
    except OSError:
        pass  # a cache that cannot be written costs 0.2 s the next time
    return verdict


def too_large(target: Engine, draft: Engine) -> str | None:
    """A warning when the draft is not clearly smaller than the target, in bytes read per token."""
    share = draft.num_bytes / target.num_bytes
    if share <= CLEARLY_SMALLER:
        return None
    return (
        f"The draft {draft.path.name} ({draft.num_bytes / 1e9:.2f} GB) is not clearly smaller than the target "
        f"{target.path.name} ({target.num_bytes / 1e9:.2f} GB): speculation can hardly pay. Are they swapped?"
    )
