# SPDX-License-Identifier: Apache-2.0
"""Options of a table: initial vectors, filters, eviction, checkpoint and storage.

Names and defaults are those of DeepRec's ``tf.EmbeddingVariableOption``. Each option is a frozen
dataclass that checks its values when it is constructed. Options compare by value and can be copied
and pickled.
"""

import abc
import dataclasses
import enum
import math
import numbers
from typing import Any, Callable, Dict, NoReturn, Optional, Sequence, TypeVar, Union, get_args

import numpy as np
import tensorflow.compat.v1 as tf

from rec_estimator.regularizers import Regularizer, check_regularizer

# What Capacity evicts first.
CAPACITY_POLICIES = ("lfu", "lru", "lfu_decay")

# The kernels store a threshold in 32 bits, and the attribute of an op is signed.
MAX_FILTER_FREQ = 2**31 - 1

# With more keys, a Bloom filter would need more than 2^63 bits at the lowest rate.
MAX_ELEMENT_SIZE = 2**40

# The largest count of each type of DeepRec's Bloom counters. It only limits filter_freq here: our
# counters store min(count, filter_freq) in as few bits as possible.
_COUNTER_LIMITS = {
    tf.uint8: 2**8 - 1,
    tf.uint16: 2**16 - 1,
    tf.uint32: 2**32 - 1,
    tf.uint64: 2**64 - 1,
    tf.int64: 2**63 - 1,
}

# The value of false_positive_probability that means "not set" in DeepRec.
_NOT_SET = -1.0


# DeepRec's names of attributes, and the arguments that set them.
_ARGUMENTS = {"evict": "evict_option", "filter_strategy": "filter_option", "init": "init_option"}

_Option = TypeVar("_Option", bound=type)


def _explain_assignments(option: _Option) -> _Option:
    """Makes the error for an assignment to an option name the argument."""

    def refuse(self: Any, name: str, value: Any) -> NoReturn:
        argument = _ARGUMENTS.get(name, name)
        raise dataclasses.FrozenInstanceError(
            f"{name} of {option.__name__} cannot be assigned, got {value!r}; pass {argument}= to "
            f"{option.__name__}, or use dataclasses.replace(option, {argument}=...)"
        )

    option.__setattr__ = refuse  # type: ignore[method-assign, assignment]
    return option


# A TensorFlow initializer, its class, a function of shape and dtype, or the initial vector.
Initializer = Union[Callable[..., Any], Sequence[float], np.ndarray, tf.Tensor]


class SameRowInitializer:
    """Gives every key the same initial vector, as DeepRec does for a list.

    Args:
      row: [dim] or [1, dim]. Numbers or a tensor.

    Raises:
      TypeError: row is not of numbers.
      ValueError: row has another number of axes, or a number that is not finite.
    """

    def __init__(self, row: Union[Sequence[float], np.ndarray, tf.Tensor]) -> None:
        if not isinstance(row, tf.Tensor):
            row = np.asarray(row)
            if row.dtype.kind not in "iuf":
                raise TypeError(f"initializer must be a row of numbers, got {row!r}; cast them")
            if not np.isfinite(row).all():
                raise ValueError(f"initializer must be a row of finite numbers, got {row!r}")
            row = row.astype(np.float32)
        shape = tf.TensorShape(row.shape)
        if shape.rank not in (1, 2) or shape.as_list()[:-1] not in ([], [1]):
            raise ValueError(
                f"initializer must be a function or one row [dim], got shape {shape}; for "
                "several rows use tf.constant_initializer(rows) and default_value_dim=len(rows)"
            )
        self._row = row

    @property
    def dim(self) -> Optional[int]:
        """Number of elements of the row; None if that is not static."""
        return tf.TensorShape(self._row.shape).as_list()[-1]

    def __call__(self, shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Tensor:
        """Gives the row `shape[0]` times."""
        return tf.broadcast_to(tf.cast(self._row, dtype), shape)

    def get_config(self) -> Dict[str, Any]:
        """The row. Two initializers with equal configurations do the same."""
        return {"row": self._row if isinstance(self._row, tf.Tensor) else self._row.tolist()}

    def __repr__(self) -> str:
        return f"SameRowInitializer({self.get_config()['row']!r})"


def as_initializer(value: Initializer) -> Callable[..., Any]:
    """Returns what gives initial vectors: `value`, or an initializer for one vector.

    Raises:
      TypeError: value is neither an initializer nor a row of numbers.
      ValueError: value is not one row.
    """
    if callable(value):
        return value
    if isinstance(value, (list, tuple, np.ndarray, tf.Tensor)):
        return SameRowInitializer(value)
    raise TypeError(
        "initializer must be a TensorFlow initializer, a function of shape and dtype, or one row, "
        f"got {value!r}; for fixed values use tf.constant_initializer(values)"
    )


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class InitializerOption:
    """The initial vectors of new keys.

    The initializer is called once per table with shape ``[default_value_dim, dim]``. The initial
    vector of key ``k`` is row ``floormod(k, default_value_dim)`` of the result.

    Attributes:
      initializer: A TensorFlow initializer: an instance, a class or a function of shape and dtype.
        Or a list, NumPy array or tensor [dim], the initial vector of every key.
        None: ``get_embedding_variable(initializer=)``, else the initializer of the variable scope,
        else ``tf.compat.v1.truncated_normal_initializer()``.
      default_value_dim: Number of distinct initial vectors, at least 1.
      default_value_no_permission: The value of every element that a lookup reads for a key that the
        filter has not admitted.

    Raises:
      TypeError: initializer is neither callable nor a row of numbers.
      ValueError: initializer is not one row, or default_value_dim or default_value_no_permission is
        out of range.

    Example:
      >>> rec.InitializerOption(tf.zeros_initializer(), default_value_dim=1).default_value_dim
      1
    """

    initializer: Optional[Initializer] = None
    default_value_dim: int = 4096
    default_value_no_permission: float = 0.0

    def __post_init__(self) -> None:
        if self.initializer is not None:
            object.__setattr__(self, "initializer", as_initializer(self.initializer))
        if not _is_integer(self.default_value_dim) or self.default_value_dim < 1:
            raise ValueError(
                f"default_value_dim must be an integer >= 1, got {self.default_value_dim!r}; "
                "it is the number of distinct initial vectors"
            )
        value = self.default_value_no_permission
        if not _is_number(value) or not math.isfinite(value):
            raise ValueError(
                f"default_value_no_permission must be a finite number, got {value!r}; the default "
                "is 0.0"
            )


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class CounterFilter:
    """Admits a key after ``filter_freq`` occurrences in training; counts every key exactly.

    A key that is not admitted takes at most 40 bytes. Checkpoints contain its count.

    Attributes:
      filter_freq: Number of occurrences, in [0, 2**31 - 1]. The step in which a key reaches it
        gives the key a row and applies the key's gradient. 0: no filter.

    Raises:
      ValueError: filter_freq is not an integer in its range.

    Example:
      >>> option = rec.EmbeddingVariableOption(filter_option=rec.CounterFilter(filter_freq=3))
      >>> option.filter_strategy
      CounterFilter(filter_freq=3)
    """

    filter_freq: int = 0

    def __post_init__(self) -> None:
        _check_filter_freq(self.filter_freq)

    def handle_attrs(self) -> Dict[str, Any]:
        """Attributes of the filter in the op that makes a table's handle."""
        return {"filter_freq": self.filter_freq}

    def sketch_tensors(self) -> Dict[str, tf.DType]:
        """Tensors that a table adds to a checkpoint: none, because entries count the keys."""
        return {}


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class CBFFilter:
    """Admits a key after about ``filter_freq`` occurrences; counts keys in a counting Bloom filter.

    The filter never admits a key late. It admits a key early with probability
    ``false_positive_probability`` once ``max_element_size`` keys were counted. Its memory grows as
    new keys occur, up to a fixed size.

    Attributes:
      filter_freq: As in CounterFilter.
      max_element_size: Expected number of distinct keys, over all shards of the table. 0, without a
        probability: the filter behaves like a CounterFilter, as in DeepRec.
      false_positive_probability: In (0, 1). -1.0: not set, allowed with max_element_size=0 only.
      counter_type: tf.uint8, uint16, uint32, uint64 or int64. filter_freq must be at most the
        largest number of this type. It does not change the memory: counters always have as few bits
        as filter_freq needs.

    Raises:
      ValueError: A value is out of range, or only one of max_element_size and
        false_positive_probability is given.

    Example:
      >>> bloom = rec.CBFFilter(
      ...     filter_freq=3, max_element_size=2**30, false_positive_probability=0.01,
      ...     counter_type=tf.int64)
      >>> bloom.has_size
      True
      >>> rec.CBFFilter(filter_freq=3).has_size
      False
    """

    filter_freq: int = 0
    max_element_size: int = 0
    false_positive_probability: float = _NOT_SET
    counter_type: tf.DType = tf.uint64

    def __post_init__(self) -> None:
        _check_filter_freq(self.filter_freq)
        self._check_size()
        counter_type = self._checked_counter_type()
        object.__setattr__(self, "counter_type", counter_type)
        limit = _COUNTER_LIMITS[counter_type]
        if self.filter_freq > limit:
            raise ValueError(
                f"filter_freq must be at most {limit}, the largest {counter_type.name}, got "
                f"{self.filter_freq}; choose a wider counter_type"
            )

    def _check_size(self) -> None:
        probability, size = self.false_positive_probability, self.max_element_size
        # The kernels use float32, so a number that rounds to 0 or 1 is refused.
        if not _is_number(probability) or not (
            probability == _NOT_SET or 0 < _float32(probability) < 1
        ):
            raise ValueError(
                "false_positive_probability must be in (0, 1), or -1.0 if it is not set, got "
                f"{probability!r}; for example 0.01"
            )
        if not _is_integer(size) or not 0 <= size <= MAX_ELEMENT_SIZE:
            raise ValueError(
                f"max_element_size must be an integer in [0, {MAX_ELEMENT_SIZE}], got {size!r}; it "
                "is the expected number of distinct keys"
            )
        if probability != _NOT_SET and size == 0:
            raise ValueError(
                "max_element_size must be larger than 0 with a false_positive_probability, got 0 "
                f"with {probability!r}; pass the expected number of distinct keys"
            )
        if probability == _NOT_SET and size > 0:
            raise ValueError(
                f"max_element_size must be 0 without a false_positive_probability, got {size}; "
                "pass a probability too, for example 0.01"
            )

    def _checked_counter_type(self) -> tf.DType:
        try:
            counter_type = tf.as_dtype(self.counter_type)
        except TypeError:
            counter_type = None
        if counter_type not in _COUNTER_LIMITS:
            raise ValueError(
                "counter_type must be tf.uint8, uint16, uint32, uint64 or int64, got "
                f"{self.counter_type!r}; the default is tf.uint64"
            )
        return counter_type

    @property
    def has_size(self) -> bool:
        """Whether max_element_size is set. Otherwise the filter behaves like a CounterFilter."""
        return self.max_element_size > 0

    def handle_attrs(self) -> Dict[str, Any]:
        """Attributes of the filter in the op that makes a table's handle."""
        size, probability = int(self.max_element_size), float(self.false_positive_probability)
        return {
            "filter_freq": self.filter_freq,
            "sketch": f"counting_bloom_filter max_element_size={size} "
            f"false_positive_probability={probability!r}",
        }

    def sketch_tensors(self) -> Dict[str, tf.DType]:
        """The types of the tensors that a table adds to a checkpoint, keyed by name suffix.

        bloom_sketch.h explains them. They have the order of the kernels.
        """
        freq = self.filter_freq
        counter_type = tf.uint8 if freq < 2**8 else tf.uint16 if freq < 2**16 else tf.uint32
        numbers = dict.fromkeys(("cbf_layout", "cbf_generations", "cbf_blocks"), tf.int64)
        return {**numbers, "cbf_counters": counter_type}


class EvictionRule(abc.ABC):
    """What decides which keys an eviction takes. Each rule is a frozen dataclass derived from it.

    Attributes:
      needs_global_step: Whether the graph must have a global step.
    """

    needs_global_step = False

    @property
    @abc.abstractmethod
    def is_on(self) -> bool:
        """Whether the rule can evict any row."""

    @property
    @abc.abstractmethod
    def attrs(self) -> Dict[str, Any]:
        """The attributes of TableEvict."""

    @property
    def timed(self) -> Optional["TimeEvict"]:
        """The rule that tells the time, if the versions of rows are times; None: they are steps."""
        return None


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class GlobalStepEvict(EvictionRule):
    """Evicts keys that were not trained for a number of steps, at each full save.

    Attributes:
      steps_to_live: A key is evicted if its last training step was more than this many steps ago.
        That includes keys without a row, which a filter only counts. None or 0: nothing is evicted,
        as in DeepRec. After a warm start from another run, the last training step of a key may be
        ahead of the global step; its steps are then counted from the first save.

    Raises:
      ValueError: steps_to_live is neither None nor an integer >= 0.

    Example:
      >>> rec.EmbeddingVariableOption(evict_option=rec.GlobalStepEvict(4000)).evict.steps_to_live
      4000
    """

    steps_to_live: Optional[int] = None

    needs_global_step = True

    def __post_init__(self) -> None:
        steps = self.steps_to_live
        if steps is not None and not (_is_integer(steps) and 0 <= steps < 2**63):
            raise ValueError(
                f"steps_to_live must be None or an integer >= 0, got {steps!r}; it is a number of "
                "global steps"
            )

    @property
    def is_on(self) -> bool:
        """Whether the rule can evict any row."""
        return bool(self.steps_to_live)

    @property
    def attrs(self) -> Dict[str, Any]:
        """The attributes of TableEvict."""
        return {"steps_to_live": self.steps_to_live}


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class TimeEvict(EvictionRule):
    """Evicts keys that were not trained for some time, at each full save.

    The time is that of the training: each step advances it to the clock, or to the timestamps of
    its batch, and a key is as old as the time since the last step that trained it. Clocks may jump:

    * The time never goes back. A clock that was set back goes on from the present time, so that no
      key looks younger or older than it is.
    * A step advances the time by at most a thousandth of ``seconds`` (at least one second). So a
      clock that was set ahead, a wrong timestamp or a pause of the training empties no table: a key
      that is trained at least once in a thousand steps stays.

    Attributes:
      seconds: A key is evicted if its last training step was more than this many seconds ago. That
        includes keys without a row, which a filter only counts. None or 0: nothing is evicted.
      timestamp: What tells the time. None: the clock of the task that holds the time, a parameter
        server in a cluster. A string: the entry of the batch with this name or, without
        RecEstimator, the tensor. It holds seconds since 1970, integers or floats of any shape, such
        as one for each example; the median counts. 0 is no timestamp.

    Raises:
      ValueError: seconds is neither None nor an integer in [0, 2**53).
      TypeError: timestamp is neither None nor a string.

    Example:
      >>> week = rec.TimeEvict(7 * 24 * 3600, timestamp="time")
      >>> rec.EmbeddingVariableOption(evict_option=week).evict.seconds
      604800
    """

    seconds: Optional[int] = None
    timestamp: Optional[str] = None

    def __post_init__(self) -> None:
        seconds = self.seconds
        if seconds is not None and not (_is_integer(seconds) and 0 <= seconds < 2**53):
            raise ValueError(
                f"seconds must be None or an integer in [0, 2**53), got {seconds!r}; a day has "
                "86400"
            )
        _check_optional_text("timestamp", self.timestamp)

    @property
    def is_on(self) -> bool:
        """Whether the rule can evict any row."""
        return bool(self.seconds)

    @property
    def attrs(self) -> Dict[str, Any]:
        """The attributes of TableEvict."""
        return {"seconds_to_live": self.seconds}

    @property
    def timed(self) -> Optional["TimeEvict"]:
        """This rule, if it is on."""
        return self if self.is_on else None

    @property
    def most_seconds_per_step(self) -> int:
        """The most by which a step advances the time."""
        return max((self.seconds or 0) // 1000, 1)

    @property
    def tolerance(self) -> int:
        """How many seconds a reading may be behind the time before the clock was set back.

        Of a clock, what its readings for several workers may differ. Batches come in any order: the
        data begins anew if it goes back by more than a lifetime.
        """
        return 60 if self.timestamp is None else self.seconds or 0


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class L2WeightEvict(EvictionRule):
    """Evicts rows with small values, and rows that are not finite, at each full save.

    Counts of keys without a row are bounded, too. A CounterFilter keeps the counts of the keys that
    occurred last: four for each row, and at least 65,536 for each shard. A CBFFilter forgets a key
    when ``max_element_size`` other keys were counted.

    Attributes:
      l2_weight_threshold: Above 0. A row is evicted if half the sum of its squared values is below
        this threshold, or if a value is NaN or infinite. -1.0: nothing is evicted.

    Raises:
      ValueError: l2_weight_threshold is neither -1.0 nor a finite number above 0.

    Example:
      >>> rec.L2WeightEvict(0.9).l2_weight_threshold
      0.9
    """

    l2_weight_threshold: float = -1.0

    def __post_init__(self) -> None:
        value = self.l2_weight_threshold
        if not _is_number(value) or not (value == -1.0 or 0 < _float32(value) < math.inf):
            raise ValueError(
                "l2_weight_threshold must be a finite number above 0, or -1.0 to evict nothing, "
                f"got {value!r}; it is compared with half the sum of the squared values"
            )

    @property
    def is_on(self) -> bool:
        """Whether the rule can evict any row."""
        return self.l2_weight_threshold > 0

    @property
    def attrs(self) -> Dict[str, Any]:
        """The attributes of TableEvict."""
        return {"l2_weight_threshold": self.l2_weight_threshold}


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class CheckpointOption:
    """The checkpoint that the rows of a new table are loaded from.

    Attributes:
      ckpt_to_load_from: Prefix of a checkpoint, or a folder with one. None: the table starts empty.
      tensor_name_in_ckpt: Name of the table in the checkpoint. None: the name of this table.
      always_load_from_specific_ckpt: Whether to load the rows even if training resumes from a
        checkpoint of its own, which has the trained rows. Evaluation, prediction and exports read
        the trained rows.
      init_data_source: Must be None. In DeepRec it names a source in a system that is not public.

    Raises:
      TypeError: A name is not a string.
      ValueError: A name is empty, or another attribute is given without ckpt_to_load_from.

    Example:
      >>> rec.CheckpointOption("model.ckpt-100", "item").tensor_name_in_ckpt
      'item'
    """

    ckpt_to_load_from: Optional[str] = None
    tensor_name_in_ckpt: Optional[str] = None
    always_load_from_specific_ckpt: bool = False
    init_data_source: None = None

    def __post_init__(self) -> None:
        for name in ("ckpt_to_load_from", "tensor_name_in_ckpt"):
            _check_optional_text(name, getattr(self, name))
        if not isinstance(self.always_load_from_specific_ckpt, bool):
            raise TypeError(
                "always_load_from_specific_ckpt must be True or False, got "
                f"{self.always_load_from_specific_ckpt!r}; it is not a path"
            )
        if self.init_data_source is not None:
            raise ValueError(
                f"init_data_source must be None, got {self.init_data_source!r}; pass a checkpoint "
                "as ckpt_to_load_from"
            )
        if self.ckpt_to_load_from is None and (
            self.tensor_name_in_ckpt is not None or self.always_load_from_specific_ckpt
        ):
            raise ValueError(
                "ckpt_to_load_from must be given with tensor_name_in_ckpt and "
                f"always_load_from_specific_ckpt, got None with {self.tensor_name_in_ckpt!r} and "
                f"{self.always_load_from_specific_ckpt!r}"
            )


class StorageType(enum.IntEnum):
    """The tiers that store rows, from fast to slow, with DeepRec's names and numbers.

    Example:
      >>> rec.StorageType.DRAM_SSDHASH.value
      12
    """

    DEFAULT = 0
    DRAM = 1
    PMEM_MEMKIND = 2
    PMEM_LIBPMEM = 3
    SSDHASH = 4
    LEVELDB = 5
    HBM = 6
    DRAM_PMEM = 11
    DRAM_SSDHASH = 12
    HBM_DRAM = 13
    DRAM_LEVELDB = 14
    DRAM_PMEM_SSDHASH = 101
    HBM_DRAM_SSDHASH = 102

    @property
    def has_files(self) -> bool:
        """Whether a tier stores rows in files, which need a path."""
        return "SSDHASH" in self.name or "LEVELDB" in self.name

    @property
    def has_tiers(self) -> bool:
        """Whether there is more than one tier."""
        return self >= StorageType.DRAM_PMEM

    @property
    def is_on_disk(self) -> bool:
        """Whether it is one of the types with files that tables have: SSDHASH and DRAM_SSDHASH."""
        return self in (StorageType.SSDHASH, StorageType.DRAM_SSDHASH)


class CacheStrategy(enum.IntEnum):
    """The rule for moving rows out of the fast tier, with DeepRec's names and numbers.

    Example:
      >>> rec.CacheStrategy.LFU.value
      1
    """

    LRU = 0
    LFU = 1


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class StorageOption:
    """The storage of a table's rows.

    docs/storage.md says when to keep rows on disk, and what that costs.

    Attributes:
      storage_type: DRAM_SSDHASH: rows that do not fit into storage_size[0] are in files. SSDHASH:
        all rows are in files, except the rows of running steps. DRAM, DEFAULT and None: all rows
        are in memory. get_embedding_variable refuses the other types.
      storage_path: Folder of the files, on the machine of the table. It is made with the table if
        it is missing. The files live as long as the table.
      storage_size: Bytes of each tier except the last, from fast to slow: a list of 1 to 4
        integers, stored as a tuple. With DRAM_SSDHASH, the first is the memory for rows, values
        and slots, over all shards of the table; the index of the keys needs more memory. The others
        have no effect, as in DeepRec: only the disk limits the files.
      cache_strategy: Which rows leave memory first. LFU: the rows that were trained least often.
        LRU: the rows whose last training step is the oldest.
      layout: Must be None; rows have only one layout.

    Raises:
      TypeError: A value has the wrong type.
      ValueError: storage_path is given without storage_type, or SSDHASH or DRAM_SSDHASH without
        storage_path; storage_size is not a list of positive integers.

    Example:
      >>> rec.StorageOption(rec.StorageType.DRAM).storage_size
      (1073741824,)
      >>> rec.StorageOption(rec.StorageType.DRAM_SSDHASH, "/ssd/rows", [8 * 1024**3]).storage_path
      '/ssd/rows'
    """

    storage_type: Optional[StorageType] = None
    storage_path: Optional[str] = None
    storage_size: Sequence[int] = (1024**3,)
    cache_strategy: CacheStrategy = CacheStrategy.LFU
    layout: None = None

    def __post_init__(self) -> None:
        kind = self.storage_type
        if kind is not None and not isinstance(kind, StorageType):
            raise TypeError(
                f"storage_type must be a StorageType or None, got {kind!r}; for example "
                "StorageType.DRAM"
            )
        if not isinstance(self.cache_strategy, CacheStrategy):
            raise TypeError(
                f"cache_strategy must be a CacheStrategy, got {self.cache_strategy!r}; for example "
                "CacheStrategy.LFU"
            )
        if self.layout is not None:
            raise ValueError(f"layout must be None, got {self.layout!r}; rows have only one layout")
        _check_optional_text("storage_path", self.storage_path)
        if kind is None and self.storage_path is not None:
            raise ValueError(
                "storage_type must be given with a storage_path, got None with "
                f"{self.storage_path!r}; for example StorageType.DRAM_SSDHASH"
            )
        if kind is not None and kind.is_on_disk and self.storage_path is None:
            raise ValueError(
                f"storage_path must be given with storage_type {kind.name}, got None; it is the "
                "folder for the rows that are not in memory"
            )
        sizes = self.storage_size
        if (
            not isinstance(sizes, (list, tuple))
            or not 1 <= len(sizes) <= 4
            or not all(_is_integer(size) and size > 0 for size in sizes)
        ):
            raise ValueError(
                f"storage_size must be a list of 1 to 4 positive integers, got {sizes!r}; they are "
                "the bytes of each tier except the last"
            )
        # A tuple is hashable, and independent of the user's list.
        object.__setattr__(self, "storage_size", tuple(sizes))


# All filters; each has filter_freq, handle_attrs and sketch_tensors.
Filter = Union[CounterFilter, CBFFilter]


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class PretrainedRows:
    """Rows that a new table has from the beginning, such as word vectors. Not in DeepRec.

    The initializer of the table reads the file, in the process that runs it. A training that
    resumes from a checkpoint does not read it. The rows count as trained: a filter admits them.

    Attributes:
      path: A .npy, .parquet, .txt or .vec file; docs/exporting_embeddings.md describes them.
      integer_keys: Whether strings in the file are decimal numbers, which are the keys. False:
        strings are hashed, as those of an EmbeddingFeature of tf.string are.

    Raises:
      TypeError: path is not a string, or integer_keys not a bool.

    Example:
      >>> option = rec.EmbeddingVariableOption(pretrained=rec.PretrainedRows("words.vec"))
      >>> option.pretrained.integer_keys
      False
    """

    path: str
    integer_keys: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("path", str), ("integer_keys", bool)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be of type {kind.__name__}, got {value!r}")


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class Capacity:
    """How many rows a table keeps. A full table evicts its coldest rows at the end of each step.

    ``RunConfig(table_memory_bytes=)`` bounds the memory of all tables with a Capacity together,
    besides their ``max_rows`` or instead of them.

    Evicted rows leave as with ``table.evict()``: slots and counts go with them, and the next delta
    says so. Rows of running steps stay. Which rows are coldest is decided within windows of
    thousands of rows, so it is nearly the choice of the whole table. Neither threads nor a restart
    change the choice, if versions are global steps: with TimeEvict, and without a global step, a
    restarted training may keep other rows.

    Attributes:
      max_rows: Rows of the whole table, from 1, on disk and in memory. A partitioned table divides
        them evenly among its shards, and needs one for each. A table that was restored with more
        shrinks step by step. None: as many as there is memory for; needs ``table_memory_bytes``.
      policy: "lfu" evicts the rows with the least counts, and the oldest among equals; "lru" those
        that were trained longest ago; "lfu_decay" is lfu with counts that lose half of their worth
        in each half_life since the row was trained. "lru" and "lfu_decay" need a global step.
      half_life: Steps, from 1, with "lfu_decay"; None otherwise. Not with TimeEvict, with which
        rows know the second in which they were trained, not the step.

    Raises:
      ValueError: An argument is out of range.

    Example:
      >>> option = rec.EmbeddingVariableOption(capacity=rec.Capacity(1_000_000, policy="lru"))
      >>> option.capacity.max_rows
      1000000
    """

    max_rows: Optional[int] = None
    policy: str = "lfu"
    half_life: Optional[int] = None

    def __post_init__(self) -> None:
        if self.max_rows is not None and (not _is_integer(self.max_rows) or self.max_rows < 1):
            raise ValueError(
                f"max_rows must be an integer >= 1 or None, got {self.max_rows!r}; without "
                "capacity= a table has no limit"
            )
        if self.policy not in CAPACITY_POLICIES:
            raise ValueError(
                f"policy must be one of {', '.join(CAPACITY_POLICIES)}, got {self.policy!r}"
            )
        if (self.half_life is not None) != (self.policy == "lfu_decay"):
            raise ValueError(
                "half_life must be given with policy='lfu_decay' and only there, got "
                f"{self.half_life!r} with {self.policy!r}"
            )
        if self.half_life is not None and (not _is_integer(self.half_life) or self.half_life < 1):
            raise ValueError(f"half_life must be an integer >= 1, got {self.half_life!r}; in steps")

    @property
    def needs_global_step(self) -> bool:
        """Whether the policy reads when rows were trained."""
        return self.policy != "lfu"

    def handle_attrs(self, part: int, num_parts: int) -> Dict[str, Any]:
        """The attributes of the handle of a shard."""
        rows = self.max_rows or 0
        if 0 < rows < num_parts:
            raise ValueError(
                f"max_rows must be >= {num_parts}, the number of shards of the table, got {rows}; "
                "a shard has one row at least"
            )
        return {
            "capacity_rows": rows // num_parts + (part < rows % num_parts),
            "capacity_policy": self.policy,
            "capacity_half_life": self.half_life or 1,
        }


@_explain_assignments
@dataclasses.dataclass(frozen=True)
class EmbeddingVariableOption:
    """All options of a table.

    Attributes:
      ht_type: Not used; it selects a hash table in DeepRec.
      ht_partition_num: Not used; it belongs to DeepRec's hash tables.
      evict_option: GlobalStepEvict, TimeEvict or L2WeightEvict. None: no row is evicted.
      ckpt: CheckpointOption of a new table. None: the table starts empty.
      filter_option: CounterFilter or CBFFilter. None: every key is admitted at once.
      storage_option: The storage of the rows.
      init_option: The initial vectors of new keys.
      regularizer: L2Regularizer or LazyDecay; not an option in DeepRec. None: only gradients change
        rows.
      capacity: How many rows the table keeps; not an option in DeepRec. None: all.
      pretrained: Rows of a new table, from a file; not an option in DeepRec. None: see ckpt.

    Raises:
      TypeError: An option has the wrong type.
      ValueError: Both ckpt and pretrained are given, evict_option is a list, ht_partition_num is
        below 1, or a CBFFilter is combined with several tiers or files, or a half_life with
        TimeEvict.

    Example:
      >>> init = rec.InitializerOption(default_value_dim=8)
      >>> option = rec.EmbeddingVariableOption(
      ...     init_option=init, filter_option=rec.CounterFilter(3))
      >>> option.init.default_value_dim, option.filter_strategy.filter_freq
      (8, 3)
    """

    ht_type: str = ""
    ht_partition_num: int = 1000
    evict_option: Optional[EvictionRule] = None
    ckpt: Optional[CheckpointOption] = None
    filter_option: Optional[Filter] = None
    storage_option: StorageOption = dataclasses.field(default_factory=StorageOption)
    init_option: InitializerOption = dataclasses.field(default_factory=InitializerOption)
    regularizer: Optional[Regularizer] = None
    capacity: Optional[Capacity] = None
    pretrained: Optional[PretrainedRows] = None

    def __post_init__(self) -> None:
        if isinstance(self.evict_option, (list, tuple)):
            raise ValueError(
                f"evict_option must be one rule, got {self.evict_option!r}; step and L2 eviction "
                "cannot be enabled at the same time"
            )
        for name, kinds, is_optional in (
            ("ht_type", (str,), False),
            ("evict_option", tuple(EvictionRule.__subclasses__()), True),
            ("ckpt", (CheckpointOption,), True),
            ("filter_option", get_args(Filter), True),
            ("storage_option", (StorageOption,), False),
            ("init_option", (InitializerOption,), False),
            ("capacity", (Capacity,), True),
            ("pretrained", (PretrainedRows,), True),
        ):
            value = getattr(self, name)
            if not (isinstance(value, kinds) or (is_optional and value is None)):
                rule = " or ".join(kind.__name__ for kind in kinds)
                raise TypeError(
                    f"{name} must be of type {rule}{' or None' * is_optional}, got {value!r}; pass "
                    "options by name, for example filter_option="
                )
        check_regularizer(self.regularizer)
        if not _is_integer(self.ht_partition_num) or self.ht_partition_num < 1:
            raise ValueError(
                f"ht_partition_num must be an integer >= 1, got {self.ht_partition_num!r}; it is "
                "not used, omit it"
            )
        if self.ckpt is not None and self.pretrained is not None:
            raise ValueError(
                f"pretrained must be None with ckpt={self.ckpt!r}, got {self.pretrained!r}; a new "
                "table takes its rows from one of them"
            )
        decays = self.capacity is not None and self.capacity.half_life is not None
        if decays and isinstance(self.evict_option, TimeEvict) and self.evict_option.is_on:
            raise ValueError(
                f"capacity must not be {self.capacity!r} with TimeEvict, with which versions "
                "count seconds instead of steps; use another policy, or GlobalStepEvict"
            )
        kind = self.storage_option.storage_type or StorageType.DEFAULT
        if isinstance(self.filter_option, CBFFilter) and (kind.has_tiers or kind.has_files):
            raise ValueError(
                f"filter_option must not be a CBFFilter with storage_type {kind.name}, got "
                f"{self.filter_option!r}; use CounterFilter({self.filter_option.filter_freq})"
            )

    @property
    def evict(self) -> Optional[EvictionRule]:
        """Same as ``evict_option``, under DeepRec's name."""
        return self.evict_option

    @property
    def filter_strategy(self) -> Optional[Filter]:
        """Same as ``filter_option``, under DeepRec's name."""
        return self.filter_option

    @property
    def init(self) -> InitializerOption:
        """Same as ``init_option``, under DeepRec's name."""
        return self.init_option


def _check_filter_freq(value: Any) -> None:
    if not _is_integer(value) or not 0 <= value <= MAX_FILTER_FREQ:
        raise ValueError(
            f"filter_freq must be an integer in [0, {MAX_FILTER_FREQ}], got {value!r}; it is a "
            "number of occurrences, 0 for no filter"
        )


def _check_optional_text(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None, got {value!r}; pass a string")
    if value == "":
        raise ValueError(f"{name} must be a non-empty string or None, got ''; omit it")
    if value is not None and "\0" in value:
        raise ValueError(f"{name} must have no NUL character, got {value!r}; remove it")


def _float32(value: Any) -> np.float32:
    """Rounds a number as the kernels do."""
    with np.errstate(over="ignore"):
        return np.float32(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
