"""Spark as the scripts use it: local, with two workers, and without its web pages."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


def new_session(name: str, folder: Path, settings: Mapping[str, str]) -> SparkSession:
    """With the connector registered; tables would go into `folder`."""
    # Spark's workers run whatever python3 comes first, unless they are told.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession  # noqa: PLC0415 - after the variables, and only here

    from seglog.spark_connector import register  # noqa: PLC0415

    builder = SparkSession.builder.master("local[2]").appName(name)
    warehouse = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    for key, value in {**_SETTINGS, **warehouse, **settings}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
