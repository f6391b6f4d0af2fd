# SPDX-License-Identifier: Apache-2.0
"""Constants that scripts for Rec SDK use: names of graph collections, and enumerations.

Source: Rec SDK TensorFlow, ``mx_rec.constants.constants``, which has the same names and values.
"""

import enum
from typing import Any, Type, TypeVar

# Graph modification fills and reads two of these collections, so it defines their names:
# the ops that start the data of a modified graph, and the timestamp of the batch.
from rec_estimator.graph_modifier.declared_inputs import ASCEND_TIMESTAMP as ASCEND_TIMESTAMP
from rec_estimator.graph_modifier.prepared_input import (
    ASCEND_CUTTING_POINT_INITIALIZER as ASCEND_CUTTING_POINT_INITIALIZER,
)

# The create_table tables of a graph. ConfigInitializer can choose another collection.
ASCEND_GLOBAL_HASHTABLE_COLLECTION = "ASCEND_GLOBAL_HASHTABLE_COLLECTION"

# With dynamic expansion scripts pass the first to tf.gradients, the second to apply_gradients():
# the vectors that training lookups read, and their keys.
ASCEND_SPARSE_LOOKUP_LOCAL_EMB = "ASCEND_SPARSE_LOOKUP_LOCAL_EMB"
ASCEND_SPARSE_LOOKUP_ID_OFFSET = "ASCEND_SPARSE_LOOKUP_ID_OFFSET"

_Member = TypeVar("_Member", bound="BaseEnum")


class BaseEnum(enum.Enum):
    """An enumeration whose members are found by their values, as scripts' own enumerations are.

    Example:
      >>> class UseMode(rec.BaseEnum):
      ...     TRAIN = "train"
      ...     PREDICT = "predict"
      >>> UseMode.mapping("train")
      <UseMode.TRAIN: 'train'>
    """

    @classmethod
    def mapping(cls: Type[_Member], key: Any) -> _Member:
        """Returns the member with a value.

        Args:
          key: The value, or a member of an enumeration that has it.

        Raises:
          KeyError: There is none.
        """
        value = key.value if isinstance(key, BaseEnum) else key
        for member in cls:
            if member.value == value:
                return member
        raise KeyError(
            f"key must be one of {[member.value for member in cls]}, the values of {cls.__name__}, "
            f"got {key!r}"
        )


class CacheModeEnum(BaseEnum):
    """Where scripts for Rec SDK keep the rows of tables: in device memory, host memory or on SSD.

    Scripts choose vocabulary sizes by it. Here device and host memory are the same.

    Example:
      >>> rec.CacheModeEnum.mapping("DDR")
      <CacheModeEnum.DDR: 'DDR'>
    """

    HBM = "HBM"
    DDR = "DDR"
    SSD = "SSD"
