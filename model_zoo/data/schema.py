# SPDX-License-Identifier: Apache-2.0
"""The schema of a data set: a YAML file that says what its files, columns and labels are."""

import dataclasses
import pathlib
import re
from typing import Any, Mapping, Optional, Tuple, Union

from model_zoo.data.column import KINDS, ROLES, Column
from model_zoo.data.dataset import PARTS, check_columns
from model_zoo.data.settings import Settings, read_settings

FORMATS = ("csv", "tsv", "libsvm", "tfrecord", "parquet")
TRANSFORMS = ("log", "standard", "log_buckets", "hour", "weekday")
EVERY = "all"  # the key of `files` if a split divides them

_CONDITION = re.compile(r"\s*([^<>=!]*[^<>=!\s])\s*(>=|<=|==|!=|>|<)\s*(.*\S)\s*")


@dataclasses.dataclass(frozen=True)
class Format:
    """How files are written.

    Attributes:
      name: One of FORMATS.
      separator: Text between the fields of a line.
      header: Whether the first line names the columns.
      names: Names of all columns in their order; of libsvm, those of the positions in a line.
        Empty: read from the files.
      quotes: Whether fields may be in double quotes.
      compression: "gzip", "zlib" or "none". None: gzip for names that end in .gz.
      missing: Texts that mean that a value is missing; the empty text always does.
    """

    name: str
    separator: str = ","
    header: bool = True
    names: Tuple[str, ...] = ()
    quotes: bool = True
    compression: Optional[str] = None
    missing: Tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Condition:
    """A label, or which rows count: a column as it is, or its comparison with a constant.

    Attributes:
      source: Name of the column in the files.
      operator: One of >= <= == != > <; "": the column is the value.
      value: A number; or a text, with == and != only.
    """

    source: str
    operator: str = ""
    value: Union[float, str] = 0.0

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Parses "rating >= 4", "status == sold" or "click".

        Raises:
          ValueError: The text has none of these forms.
        """
        found = _CONDITION.fullmatch(text)
        if not found:
            if not text.strip() or re.search("[<>=!]", text):
                raise ValueError(f"a column or a comparison such as 'rating >= 4', got {text!r}")
            return cls(text.strip())
        source, operator, constant = found.groups()
        quoted = re.fullmatch(r"(['\"])(.*)\1", constant)
        try:
            value: Union[float, str] = quoted[2] if quoted else float(constant)
        except ValueError:
            value = constant
        if isinstance(value, str) and operator not in ("==", "!="):
            raise ValueError(f"a comparison with a number, or by == or !=, got {text!r}")
        return cls(source, operator, value)


@dataclasses.dataclass(frozen=True)
class EventLog:
    """How the history of each row follows from the rows before it.

    Attributes:
      user: Name of the column whose values have a history each.
      time: Name of the column by which rows are ordered, in the files.
      where: Which rows enter later histories. None: all.
      group: Column whose equal values in a row make one event, such as an invoice. None: the time.
    """

    user: str
    time: str
    where: Optional[Condition] = None
    group: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Negatives:
    """How negatives are drawn for rows that only say what happened.

    Attributes:
      count: Negatives that follow each row: its copies with the item of an earlier row.
      window: A negative is drawn from this number of rows before; so the first rows of the log,
        this number of them, are in no part.
      group: Column whose equal values make one event, such as an invoice; its items are no
        negatives. None: the column of times.
      seed: The same seed gives the same negatives.
    """

    count: int = 1
    window: int = 10_000
    group: Optional[str] = None
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Field:
    """A column, and how its values follow from those of the files.

    Attributes:
      column: The column, as models see it.
      source: Name in the files.
      type: "int": ids are integers; "text": ids are text, which is hashed. None: as the files have
        them; text files have text.
      separator: Text between the ids of a value. None: a value is one id.
      transform: One of TRANSFORMS. None: the number itself.
      buckets: Boundaries, ascending, that make ids of numbers. None: no buckets.
      default: What stands for a missing value. None: see the fields in fields.py.
      log: How a history follows from the rows. None: it is in the files.
      names: Column in the files with a name of each id, for output.
      time_format: Of "hour" and "weekday", how times are written, with %Y, %y, %m, %d, %H, %M and
        %S. None: dates like 2011-11-01 08:26:00, or seconds since 1970.
    """

    column: Column
    source: str
    type: Optional[str] = None
    separator: Optional[str] = None
    transform: Optional[str] = None
    buckets: Optional[Tuple[float, ...]] = None
    default: Union[float, str, None] = None
    log: Optional[EventLog] = None
    names: Optional[str] = None
    time_format: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Split:
    """Which rows are of which part.

    Attributes:
      by: "time", "fraction" or "column".
      column: Of "time", the column of times; None: rows are in order of time. Of "fraction", the
        column whose equal values stay together; None: each row for itself. Of "column", the column
        that names the part.
      validation: Fraction of the rows, or of "time" the time from which rows are validation.
      test: As validation; rows from this time on are test.
      seed: Of "fraction".
      values: Of "column", the values of each part.
      begin: Of "time", the time from which rows are in a part; those before are in histories only.
      each: Of "time", the column whose values have a split each: fractions of the rows of a user.
    """

    by: str
    column: Optional[str] = None
    validation: Union[float, str] = 0.0
    test: Union[float, str] = 0.0
    seed: int = 0
    values: Mapping[str, Tuple[str, ...]] = dataclasses.field(default_factory=dict)
    begin: Optional[str] = None
    each: Optional[str] = None

    def without_validation(self) -> "Split":
        """Returns the split whose validation rows are training rows."""
        values = dict(self.values)
        if values:
            values["train"] = (*values["train"], *values.pop("validation", ()))
        return dataclasses.replace(self, validation=0.0, values=values)


@dataclasses.dataclass(frozen=True)
class Schema:
    """What a schema file says.

    Attributes:
      path: The schema file.
      name: Name of the data set.
      files: Paths and glob patterns by part; or by EVERY, if `split` divides them.
      format: How the files are written.
      fields: One per column.
      labels: What each label is.
      split: Which rows are of which part. None: `files` says it.
      credit: The owner and the license of the data.
      negatives: How negatives are drawn. None: the files have them.
      prepare: The preparation that makes the files; see prepare.py. None: they are there.
    """

    path: str
    name: str
    files: Mapping[str, Tuple[str, ...]]
    format: Format
    fields: Tuple[Field, ...]
    labels: Mapping[str, Condition]
    split: Optional[Split]
    credit: str
    negatives: Optional[Negatives] = None
    prepare: Optional[str] = None

    @property
    def is_log(self) -> bool:
        """Whether rows follow from those before them, so that they are read as a whole."""
        has_history = any(field.log is not None for field in self.fields)
        has_splits = self.split is not None and self.split.each is not None
        return has_history or has_splits or self.negatives is not None

    @property
    def columns(self) -> Tuple[Column, ...]:
        """The columns that a model sees."""
        return tuple(field.column for field in self.fields)

    def without_validation(self) -> "Schema":
        """Returns the schema whose validation rows are training rows."""
        files, split = dict(self.files), self.split
        if "validation" in files:
            files["train"] = (*files["train"], *files.pop("validation"))
        split = None if split is None else split.without_validation()
        return dataclasses.replace(self, files=files, split=split)


def read_schema(path: Union[str, pathlib.Path]) -> Schema:
    """Reads a schema file; README.md in this folder describes the format.

    Raises:
      ModuleNotFoundError: PyYAML is not installed.
      ValueError: The file is no schema; the message names the file and the key.

    Example:
      >>> _ = open("shop.yaml", "w").write('''
      ... files: {train: clicks.csv}
      ... format: csv
      ... columns:
      ...   user: {role: user}
      ...   item: {role: item}
      ... labels: click
      ... ''')
      >>> read_schema("shop.yaml").columns[1]
      Column(name='item', role='item', kind='id', table=None, max_length=1)
    """
    top = read_settings(path)
    top.only(
        *("name", "files", "format", "columns", "labels", "split", "credit"),
        *("negatives", "prepare"),
    )
    for name in ("files", "format", "columns", "labels"):
        if name not in top:
            raise top.error(name, "given", None)
    form = _format(top)
    fields = tuple(_field(top.part("columns"), name) for name in top.part("columns"))
    labels = _labels(top)
    try:
        check_columns(tuple(field.column for field in fields), tuple(labels))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    files = _files(top)
    return Schema(
        path=str(path),
        name=top.text("name", pathlib.Path(path).stem),
        files=files,
        format=form,
        fields=fields,
        labels=labels,
        split=_split(top, files),
        credit=top.text("credit", ""),
        negatives=_negatives(top.part("negatives")) if "negatives" in top else None,
        prepare=top.text("prepare"),
    )


def _format(top: Settings) -> Format:
    if not isinstance(top.value("format"), Mapping):
        name = top.one_of("format", FORMATS)
        options = Settings(top.path, "format", {})
    else:
        options = top.part("format")
        name = options.one_of("name", FORMATS)
    known = {
        "csv": ("separator", "header", "names", "quotes", "missing"),
        "tsv": ("header", "names", "quotes", "missing"),
        "libsvm": ("names",),
        "tfrecord": (),
        "parquet": (),
    }
    compression = () if name == "parquet" else ("compression",)
    options.only("name", *known[name], *compression)
    if "compression" in options:
        options.one_of("compression", ("gzip", "zlib", "none"))
    names = options.texts("names")
    if len(set(names)) != len(names):
        raise options.error("names", "names that differ", list(names))
    header = options.flag("header", not names)
    if name in ("csv", "tsv") and not header and not names:
        raise options.error("names", "given for files without a header", None)
    separator = options.text("separator", {"csv": ",", "tsv": "\t"}.get(name, " "))
    if not separator or "\n" in separator or '"' in separator:
        raise options.error("separator", "text that is no quote or line break", separator)
    if len(separator.encode()) > 1 and header:
        raise options.error(
            "separator", "one ASCII character if files have a header", separator, "give names"
        )
    return Format(
        name=name,
        separator=separator,
        header=header and name in ("csv", "tsv"),
        names=names,
        quotes=options.flag("quotes", name == "csv" and len(separator) == 1),
        compression=options.text("compression"),
        missing=options.texts("missing"),
    )


def _files(top: Settings) -> Mapping[str, Tuple[str, ...]]:
    if not isinstance(top.value("files"), Mapping):
        files = {EVERY: top.texts("files")}
    else:
        part = top.part("files")
        part.only(*PARTS)
        if "train" not in part:
            raise part.error("train", "given", None)
        files = {name: part.texts(name) for name in part}
    for name, patterns in files.items():
        if not patterns:
            raise top.error("files", f"one path or more for {name}", list(patterns))
    return files


def _field(columns: Settings, name: str) -> Field:
    options = columns.part(name)
    options.only(
        *("role", "kind", "table", "max_length", "source", "type", "separator", "transform"),
        *("default", "from", "names", "time_format"),
    )
    log = _event_log(options.part("from")) if "from" in options else None
    transform, buckets = _transform(options)
    kind = options.one_of("kind", KINDS, "id")
    makes_ids = buckets is not None or transform in ("log_buckets", "hour", "weekday")
    if transform and not makes_ids and kind != "number":
        raise options.error("transform", "left out of ids", transform, "set kind: number")
    separator = options.text("separator")
    if separator == "":
        raise options.error("separator", "one character or more", separator)
    max_length = options.count("max_length", 1)
    is_list = separator is not None or log is not None
    if is_list and "max_length" not in options:
        raise options.error("max_length", "given if a value has several ids", None)
    role = options.one_of("role", ROLES)
    try:
        column = Column(name, role, "id" if makes_ids else kind, options.text("table"), max_length)
    except ValueError as error:
        raise ValueError(f"{options.path}: {options.key}: {error}") from None
    if log is not None and role != "history":
        raise options.error("from", "left out of all but histories", dict(options.value("from")))
    if column.is_padded and makes_ids:
        raise options.error("transform", "left out of columns with several ids", transform)
    return Field(
        column=column,
        source=options.text("source", name),
        type=options.one_of("type", ("int", "text")) if "type" in options else None,
        separator=separator,
        transform=transform,
        buckets=buckets,
        default=_default(options, kind == "number" or makes_ids),
        log=log,
        names=options.text("names"),
        time_format=_time_format(options),
    )


def _transform(options: Settings) -> Tuple[Optional[str], Optional[Tuple[float, ...]]]:
    """Returns (transform, buckets), at least one of which is None."""
    if not isinstance(options.value("transform"), Mapping):
        name = options.value("transform")
        return (None if name is None else options.one_of("transform", TRANSFORMS)), None
    part = options.part("transform")
    part.only("buckets")
    found = part.value("buckets")
    is_list = isinstance(found, list) and len(found) > 0
    numbers = (
        [v for v in found if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if (is_list)
        else []
    )
    if not is_list or len(numbers) != len(found) or sorted(set(numbers)) != numbers:
        raise part.error("buckets", "a list of numbers in ascending order", found)
    return None, tuple(float(number) for number in numbers)


def _time_format(options: Settings) -> Optional[str]:
    form = options.text("time_format")
    if form is not None and not re.fullmatch("(%[YymdHMS]|[^%])+", form):
        raise options.error("time_format", "made of %Y, %y, %m, %d, %H, %M and %S", form)
    return form


def _default(options: Settings, is_number: bool) -> Union[float, str, None]:
    if "default" not in options:
        return None
    if is_number:
        return float(options.number("default"))
    value = options.value("default")
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise options.error("default", "an integer or text", value)
    if options.value("type") == "int" and not re.fullmatch(r"[+-]?\d+", str(value)):
        raise options.error("default", "an integer, as type says", value)
    return str(value)


def _event_log(options: Settings) -> EventLog:
    options.only("user", "time", "where", "group")
    for name in ("user", "time"):
        if name not in options:
            raise options.error(name, "given", None)
    where = options.text("where")
    return EventLog(
        user=options.text("user"),
        time=options.text("time"),
        where=None if where is None else _condition(options, "where", where),
        group=options.text("group"),
    )


def _negatives(options: Settings) -> Negatives:
    options.only("count", "window", "group", "seed")
    return Negatives(
        count=options.count("count", Negatives.count),
        window=options.count("window", Negatives.window),
        group=options.text("group"),
        seed=options.count("seed", Negatives.seed, least=0),
    )


def _labels(top: Settings) -> Mapping[str, Condition]:
    if isinstance(top.value("labels"), Mapping):
        part = top.part("labels")
        return {name: _condition(part, name, part.text(name)) for name in part}
    labels = {}
    for name in top.texts("labels"):
        if re.search("[<>=!]", name):
            raise top.error("labels", "a mapping of names to comparisons", name)
        labels[name] = Condition(name)
    return labels


def _condition(options: Settings, name: str, text: str) -> Condition:
    try:
        return Condition.parse(text)
    except ValueError as error:
        raise ValueError(f"{options.path}: {options.key}.{name} must be {error}") from None


def _split(top: Settings, files: Mapping[str, Tuple[str, ...]]) -> Optional[Split]:
    if "split" not in top:
        if EVERY in files:
            raise top.error("split", "given if files are not divided into parts", None)
        return None
    options = top.part("split")
    by = options.one_of("by", ("time", "fraction", "column"))
    shared = ("by", "column")
    if by == "column":
        options.only(*shared, *PARTS)
        if "column" not in options:
            raise options.error("column", "given", None)
        values = {part: options.texts(part, (part,)) for part in PARTS}
        split = Split(by, options.text("column"), values=values)
    else:
        own = ("seed",) if by == "fraction" else ("from", "each")
        options.only(*shared, "validation", "test", *own)
        split = Split(
            by,
            options.text("column"),
            validation=_share(options, "validation", by),
            test=_share(options, "test", by),
            seed=options.count("seed", 0, least=0),
            begin=_begin(options),
            each=options.text("each"),
        )
        shares = [each for each in (split.validation, split.test) if not isinstance(each, str)]
        if sum(shares) >= 1.0 or not (split.validation or split.test):
            raise options.error("", "fractions with a sum above 0 and below 1", shares)
    if EVERY not in files:
        for part in ("validation", "test"):
            if part in files and (by == "column" or getattr(split, part)):
                raise options.error(part, f"left out if files has {part}", options.value(part))
        if "test" not in files and by != "column" and split.test:
            return split
    return split


def _begin(options: Settings) -> Optional[str]:
    """Returns the text of the time `from`."""
    if "from" not in options:
        return None
    found = str(options.value("from"))
    if not found[:1].isdigit():
        raise options.error("from", "a time", found)
    return found


def _share(options: Settings, name: str, by: str) -> Union[float, str]:
    """Returns a fraction, or the text of a time."""
    value: Any = options.value(name, 0.0)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1:
        return float(value)
    if by == "time" and not isinstance(value, bool) and str(value)[:1].isdigit():
        return str(value)  # YAML reads 2011-10-01 as a date, whose text is the same
    rule = "a fraction below 1" if by == "fraction" else "a fraction below 1 or a time"
    raise options.error(name, rule, value)
