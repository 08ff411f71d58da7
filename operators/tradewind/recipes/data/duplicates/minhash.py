"""MinHash of texts: signatures in bands that bring similar texts together, and the similarity of two texts itself.

The similarity is Jaccard's: of the n-grams of characters that two texts have, the share that both have. Before that,
letters become small, punctuation goes, and white space becomes one blank. Signatures are those of ``dupekit``.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tradewind.steps.fields import FieldRule, check_fields, integer

SIGNATURES: Final = "dupekit 0.1"
"""Counts in the version of each step that compares signatures."""
_KNOWN_TEXT: Final = "The trade winds blow towards the equator."
_KNOWN_BUCKET: Final = 3492432705912652240
_MAX_PERMUTATIONS: Final = 4_096
_MAX_NGRAM: Final = 1_000
_MAX_NGRAMS: Final = 1 << 20
_MIN_FOUND: Final = 0.5
_ENOUGH_FOUND: Final = 0.9


def _from_1_to(most: int) -> FieldRule:
    whole = integer(1)
    return FieldRule(f"a whole number from 1 to {most:,}", lambda value: whole.fits(value) and value <= most)


@dataclass(frozen=True)
class MinHash:
    """Sizes of a signature; the defaults are Marin's.

    Attributes:
        num_perm: Permutations, each of which gives a number.
        bands: Groups of these numbers; two texts with one equal group are compared.
        ngram: Characters of an n-gram.
        seed: Seed of the permutations.
    """

    num_perm: int = 286
    bands: int = 26
    ngram: int = 5
    seed: int = 42

    def __post_init__(self) -> None:
        check_fields(
            self,
            num_perm=_from_1_to(_MAX_PERMUTATIONS),
            bands=_from_1_to(_MAX_PERMUTATIONS),
            ngram=_from_1_to(_MAX_NGRAM),
            seed=integer(0),
        )
        if self._is_known and self.num_perm % self.bands:
            divisors = ", ".join(map(str, _divisors(self.num_perm)))
            raise ValueError(f"bands={self.bands} does not divide num_perm={self.num_perm}: give one of {divisors}.")

    @property
    def _is_known(self) -> bool:
        """Whether no size is a run's parameter."""
        return isinstance(self.num_perm, int) and isinstance(self.bands, int)

    def chance(self, similarity: float) -> float:
        """Return the probability that two texts of this similarity are compared."""
        return _chance(similarity, self.bands, self.num_perm // self.bands)

    def check_reach(self, threshold: Any) -> None:
        """Refuse bands that miss most pairs of a similarity, if both are known.

        Raises:
            ValueError: Fewer than half of them are compared.
        """
        if not self._is_known or not isinstance(threshold, (int, float)):
            return
        if (found := self.chance(threshold)) < _MIN_FOUND:
            reaching = [
                bands
                for bands in _divisors(self.num_perm)
                if _chance(threshold, bands, self.num_perm // bands) >= _ENOUGH_FOUND
            ]
            advice = f"give bands={reaching[0]}" if reaching else "give more permutations"
            raise ValueError(
                f"bands={self.bands} with num_perm={self.num_perm} finds {found:.2%} of the pairs at "
                f"threshold={threshold:g}: {advice}."
            )

    @staticmethod
    def check_library() -> None:
        """Refuse a library that makes other signatures than ``SIGNATURES``.

        Raises:
            ValueError: It does.
        """
        if MinHash().buckets([_KNOWN_TEXT])[0][0] != _KNOWN_BUCKET:
            raise ValueError(f"The installed marin-dupekit makes other signatures than {SIGNATURES}: install that one.")

    def buckets(self, texts: Sequence[str]) -> list[list[int]]:
        """Return for each text one number of 64 bits for each band; none for a text without letters."""
        import pyarrow as pa
        from dupekit import Transformation as Step
        from dupekit import transform
        from pyarrow import compute

        batch = transform(
            pa.RecordBatch.from_pydict({"text": pa.array(texts, pa.string())}),
            [
                Step.CleanText("text", "clean"),
                Step.MinHash("clean", "signature", self.num_perm, self.ngram, self.seed),
                Step.MinHashLSH("signature", "buckets", self.bands),
                Step.SelectColumns(["clean", "buckets"]),
            ],
        )
        lengths = compute.binary_length(batch.column("clean")).to_pylist()
        found: list[list[int]] = batch.column("buckets").to_pylist()
        return [numbers if length else [] for length, numbers in zip(lengths, found, strict=True)]


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _chance(similarity: float, bands: int, rows: int) -> float:
    return float(1 - (1 - similarity**rows) ** bands)


def similarity(first: str, second: str, ngram: int) -> float:
    """Return the Jaccard similarity of two texts; 0 if both lack letters.

    Of texts with more than a million n-grams, the same part of both is compared: those whose hash is small.
    """
    import pyarrow as pa
    from dupekit import Transformation, transform

    batch = pa.RecordBatch.from_pydict({"text": pa.array([first, second], pa.string())})
    texts = transform(batch, [Transformation.CleanText("text", "clean")]).column("clean").to_pylist()
    if texts[0] == texts[1]:
        return float(bool(texts[0]))
    part = -(-max(map(len, texts)) // _MAX_NGRAMS)
    one, other = (_ngrams(text, ngram, part) for text in texts)
    shared = len(one & other)
    return shared / max(len(one) + len(other) - shared, 1)


def _ngrams(text: str, length: int, part: int) -> set[str]:
    """Return the n-grams of a text, or one part of so many; a shorter text is one itself."""
    found = (text[at : at + length] for at in range(max(len(text) - length + 1, 1)))
    return set(found) if part == 1 else {each for each in found if zlib.crc32(each.encode()) % part == 0}
