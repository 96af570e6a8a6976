#!/usr/bin/env bash
# mlflow gives an infinite loss back as a finite number, where it stores runs in a database.
#
# Versions: mlflow-skinny 3.17.2, SQLAlchemy 2.1.9, SQLite.
# A good guess: what log_metric was given comes back; NaN does, so infinity does too.
# What happens: the database store writes infinity as the largest double, 1.7976931348623157e+308, and reads that back
# as a number. math.isinf and math.isfinite of what comes back say that the run did not diverge.
# Who is hurt: whoever counts diverged runs or averages losses from a tracking database: a mean of seeds is 1e307 in
# place of infinite, a logarithm of it 709, a plot's axis ends there, and a filter for finite losses keeps the run.
# Output seen:
#   logged [1.0, inf, nan, -inf]
#   read   [1.0, 1.7976931348623157e+308, nan, -1.7976931348623157e+308]
# Source: mlflow's REST API documentation, "Log Metric"; mlflow/store/tracking/sqlalchemy_store.py.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"${PYTHON:-python3}" -m venv venv || exit 2
venv/bin/pip install --quiet --no-compile mlflow-skinny==3.17.2 alembic==1.20.1 sqlalchemy==2.1.9 || exit 2  # nothing is shown
venv/bin/python - <<'END'
import math
import sys

import mlflow

logged = [1.0, math.inf, math.nan, -math.inf]
mlflow.set_tracking_uri("sqlite:///runs.db")
with mlflow.start_run() as run:
    for step, loss in enumerate(logged):
        mlflow.log_metric("loss", loss, step=step)
history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")
read = [point.value for point in sorted(history, key=lambda point: point.step)]
print("mlflow", mlflow.__version__)
print("logged", logged)
print("read  ", read)
largest = sys.float_info.max
sys.exit(not (read[1] == largest and math.isnan(read[2]) and read[3] == -largest))
END
