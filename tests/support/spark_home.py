"""PySpark's own files under a folder in which a local-cluster may write its logs."""

from pathlib import Path

import pyspark


def writable_spark_home(directory: Path) -> str:
    """Return the folder, which is made where it is not there."""
    home = directory / "spark"
    if not home.exists():
        home.mkdir()
        for each in Path(pyspark.__file__).parent.iterdir():
            (home / each.name).symlink_to(each)
    return str(home)
