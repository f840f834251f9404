"""An operator of Airflow that sends a message, and a DAG that announces the end of a load with it."""

from typing import Any

from airflow.sdk import DAG, BaseOperator, task

from gantrymq import Message, Producer, SyncProducer


class SendMessageOperator(BaseOperator):
    """Sends a message, and returns its id.

    A retry of the task can send the message again. Its keys are the same by default, the id of the DAG's run.
    """

    template_fields = ("name_servers", "topic", "body", "keys")

    def __init__(
        self, *, name_servers: str, topic: str, body: str, keys: str = "{{ run_id }}", tags: str = "", **options: Any
    ) -> None:
        super().__init__(**options)
        self.name_servers = name_servers
        self.topic = topic
        self.body = body
        self.keys = keys
        self.tags = tags

    def execute(self, context: Any) -> str | None:
        message = Message(self.topic, self.body.encode(), keys=self.keys, tags=self.tags)
        with SyncProducer(Producer(self.name_servers, "airflow")) as producer:
            result = producer.send(message)
        self.log.info("sent message %s to topic %s", result.msg_id, self.topic)
        return result.msg_id


with DAG("daily_load", schedule="@daily") as dag:

    @task
    def load() -> None:
        print("the warehouse has all orders")

    load() >> SendMessageOperator(
        task_id="announce",
        name_servers="127.0.0.1:9876",
        topic="loads",
        body='{"day": "{{ ds }}"}',
        retries=3,
    )
