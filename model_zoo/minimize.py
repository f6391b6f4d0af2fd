# SPDX-License-Identifier: Apache-2.0
"""The training step of every model: optimizers, learning-rate schedule and clipping."""

import dataclasses
import inspect
import itertools
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple, Union

import tensorflow.compat.v1 as tf

import rec_estimator as rec
from model_zoo.names import check_names

Settings = Mapping[str, Any]
_Gradient = Optional[Union[tf.Tensor, tf.IndexedSlices]]
_Pairs = List[Tuple[_Gradient, Any]]

OPTIMIZERS: Dict[str, Callable[..., tf.train.Optimizer]] = {
    "adagrad": rec.optimizers.AdagradOptimizer,
    "adam": rec.optimizers.LazyAdamOptimizer,
    "adam_async": rec.optimizers.AdamAsyncOptimizer,
    "adam_w": rec.optimizers.AdamWOptimizer,
    "ftrl": rec.optimizers.FtrlOptimizer,
    "gradient_descent": rec.optimizers.GradientDescentOptimizer,
    "momentum": rec.optimizers.MomentumOptimizer,
    "rowwise_adagrad": rec.optimizers.RowwiseAdagradOptimizer,
}

SCHEDULES: Dict[str, Callable[..., tf.Tensor]] = {
    "cosine_decay": tf.train.cosine_decay,
    "cosine_decay_restarts": tf.train.cosine_decay_restarts,
    "exponential_decay": tf.train.exponential_decay,
    "inverse_time_decay": tf.train.inverse_time_decay,
    "linear_cosine_decay": tf.train.linear_cosine_decay,
    "natural_exp_decay": tf.train.natural_exp_decay,
    "polynomial_decay": tf.train.polynomial_decay,
}

_ADAM = {"name": "adam", "learning_rate": 0.001}


@dataclasses.dataclass(frozen=True)
class Training:
    """How a model is trained.

    Attributes:
      optimizer: Of the dense variables: "name", a key of OPTIMIZERS, "learning_rate", and further
        arguments of that optimizer. "adam" is LazyAdamOptimizer: in tables, a step changes only the
        rows of the batch.
      table_optimizer: As `optimizer`, of the tables. None: the same.
      schedule: "name", a key of SCHEDULES, and the arguments of that function of
        ``tf.compat.v1.train``, except the learning rate and the step. It starts from the
        learning_rate of each optimizer. None: the learning rates are constant.
      clip_norm: The largest norm of all gradients together; a greater one is scaled down to it.
        The gradient of a row is the sum over its occurrences. None: gradients are not clipped.
      factor: Makes a tensor, float32 [], which the learning rates of each step are multiplied by.
        None: 1.

    Raises:
      ValueError: A name is unknown or a number is out of range.

    Example:
      >>> training = Training(
      ...     optimizer={"name": "adam", "learning_rate": 0.001},
      ...     table_optimizer={"name": "adagrad", "learning_rate": 0.05},
      ...     schedule={"name": "exponential_decay", "decay_steps": 1000, "decay_rate": 0.9})
    """

    optimizer: Settings = dataclasses.field(default_factory=lambda: dict(_ADAM))
    table_optimizer: Optional[Settings] = None
    schedule: Optional[Settings] = None
    clip_norm: Optional[float] = None
    factor: Optional[Callable[[], tf.Tensor]] = None

    def __post_init__(self) -> None:
        _check_call("optimizer", self.optimizer, OPTIMIZERS, required=("learning_rate",))
        if self.table_optimizer is not None:
            _check_call(
                "table_optimizer", self.table_optimizer, OPTIMIZERS, required=("learning_rate",)
            )
        if self.schedule is not None:
            _check_call(
                "schedule", self.schedule, SCHEDULES, filled_in=("learning_rate", "global_step")
            )
        if self.clip_norm is not None and not 0 < self.clip_norm < float("inf"):
            raise ValueError(f"clip_norm must be above 0, got {self.clip_norm}; None: no clipping")

    @property
    def has_two_optimizers(self) -> bool:
        """Whether tables are trained in another way than dense variables."""
        return self.table_optimizer is not None and self.table_optimizer != self.optimizer

    def build_optimizer(self) -> tf.train.Optimizer:
        """Builds the optimizer of the dense variables in the default graph."""
        return self._build(self.optimizer)

    def build_table_optimizer(self) -> tf.train.Optimizer:
        """Builds the optimizer of the tables in the default graph."""
        return self._build(self.table_optimizer or self.optimizer)

    def _build(self, settings: Settings) -> tf.train.Optimizer:
        arguments = {name: value for name, value in settings.items() if name != "name"}
        if self.schedule is not None:
            schedule = dict(self.schedule)
            decay = SCHEDULES[schedule.pop("name")]
            step = tf.train.get_or_create_global_step()
            arguments["learning_rate"] = decay(arguments["learning_rate"], step, **schedule)
        if self.factor is not None:
            arguments["learning_rate"] *= self.factor()
        return OPTIMIZERS[settings["name"]](**arguments)


def train_op(loss: tf.Tensor, params: Mapping[str, Any]) -> tf.Operation:
    """Builds the training step of a model.

    Gradients are computed once. The ops in UPDATE_OPS, such as the running means of batch
    normalization, run in each step.

    Args:
      loss: float32 [].
      params: "training" is a Training.

    Returns:
      The op that updates all trainable variables and tables and increments the global step.

    Example:
      >>> step = tf.train.get_or_create_global_step()
      >>> table = rec.get_embedding_variable("user", 4)
      >>> loss = tf.reduce_sum(rec.embedding_lookup(table, [7, 9]))
      >>> op = train_op(loss, {"training": Training()})
    """
    training: Training = params["training"]
    step = tf.train.get_global_step()
    # Only an optimizer that computed the gradients of tables may apply them.
    optimizer = training.build_table_optimizer()
    pairs = optimizer.compute_gradients(loss)
    if training.clip_norm is not None:
        pairs = clip_by_global_norm(pairs, training.clip_norm)
    is_table = [isinstance(each, (rec.EmbeddingTable, rec.TableShard)) for _, each in pairs]
    of_tables = list(itertools.compress(pairs, is_table))
    dense = list(itertools.compress(pairs, (not each for each in is_table)))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        if not training.has_two_optimizers or not dense:
            return optimizer.apply_gradients(pairs, step)
        tables = optimizer.apply_gradients(of_tables)
    # Dense variables wait: if a table has no room for the step, none of them changes.
    with tf.control_dependencies([tables]):
        return training.build_optimizer().apply_gradients(dense, step)


def clip_by_global_norm(pairs: _Pairs, clip_norm: float) -> _Pairs:
    """Scales gradients down so that their common norm is at most clip_norm.

    ``tf.clip_by_global_norm`` takes the occurrences of a row for gradients of different rows. Here
    they are added first, so that the norm is that of the gradient of the loss.

    Args:
      pairs: Gradients and variables, as compute_gradients() returns them.
      clip_norm: The largest norm.

    Returns:
      The pairs with scaled gradients.

    Source: Pascanu, Mikolov and Bengio, On the difficulty of training recurrent neural networks,
    ICML 2013, section 3.2.
    """
    gradients = [gradient for gradient, _ in pairs]
    squares = [tf.reduce_sum(tf.square(_sums(each))) for each in gradients if each is not None]
    norm = tf.sqrt(tf.add_n(squares))
    clipped, _ = tf.clip_by_global_norm(gradients, clip_norm, use_norm=norm)
    return [(gradient, variable) for gradient, (_, variable) in zip(clipped, pairs)]


def _sums(gradient: Union[tf.Tensor, tf.IndexedSlices]) -> tf.Tensor:
    """The gradient of each row, once."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    rows, places = tf.unique(gradient.indices)
    return tf.math.unsorted_segment_sum(gradient.values, places, tf.size(rows))


def _check_call(
    what: str,
    settings: Settings,
    functions: Mapping[str, Callable[..., Any]],
    *,
    required: Tuple[str, ...] = (),
    filled_in: Tuple[str, ...] = (),
) -> None:
    """Refuses settings that are no call of one of the functions, without running it."""
    if not isinstance(settings, Mapping) or "name" not in settings:
        raise ValueError(
            f"{what} must have a name, one of {', '.join(functions)}, got {settings!r}"
        )
    check_names(f"name of {what}", [settings["name"]], functions)
    parameters = inspect.signature(functions[settings["name"]]).parameters
    known = [name for name in parameters if name not in ("self", "name", *filled_in)]
    given = [name for name in settings if name != "name"]
    check_names(f"settings of {what} {settings['name']!r}", given, known)
    for name in known:
        is_required = name in required or parameters[name].default is inspect.Parameter.empty
        if is_required and name not in settings:
            raise ValueError(f"{what} must have a {name}, got {dict(settings)}")
