"""The application and its one task. A worker process opens the gate after the fork and closes it at its end."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

from callgate import ToolCall
from examples.small_shop.shop import USERS, make_gate

BROKER = os.environ.get("CELERY_BROKER_URL", "redis://127.0.0.1:6379/0")
FOLDER = os.environ.get("CELERY_FOLDER", "")  # for a broker of files, CELERY_BROKER_URL=filesystem://

app = Celery("shop", broker=BROKER, backend=f"file://{FOLDER}" if FOLDER else BROKER)
app.conf.update(
    task_serializer="json",
    result_serializer="json",
    accept_content=["json"],  # nothing is unpickled
    task_default_queue=os.environ.get("CELERY_QUEUE", "shop"),
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
if FOLDER:
    app.conf.broker_transport_options = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), FOLDER)

tools = make_gate().sync()


@worker_process_init.connect
def open_tools(**_: Any) -> None:
    tools.open()


@worker_process_shutdown.connect
def close_tools(**_: Any) -> None:
    tools.close()


@app.task(name="shop.call_tool")
def call_tool(user_id: str, call_id: str, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """One call. A process that can write to the broker chooses the user: keep the broker as private as a database."""
    result = tools.call(
        ToolCall(id=call_id, name=tool, arguments=arguments), user=USERS[user_id], idempotency_key=call_id
    )
    return dict(result.to_status())
