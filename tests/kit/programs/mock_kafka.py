"""A mock cluster of librdkafka on a socket: prints its address, and lives until its input is closed.

The topics are given by name and number of partitions. The client package brings the library; what Python
reaches of it has no way to name topics, nor to let groups form without a pause of three seconds.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import confluent_kafka

_libraries = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
kafka = ctypes.CDLL(str(next(_libraries.glob("librdkafka*"))))
pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int


def declare(name: str, result: object, *arguments: object) -> None:
    function = getattr(kafka, name)
    function.restype, function.argtypes = result, arguments


declare("rd_kafka_conf_new", pointer)
declare("rd_kafka_new", pointer, number, pointer, text, ctypes.c_size_t)
declare("rd_kafka_mock_cluster_new", pointer, pointer, number)
declare("rd_kafka_mock_group_initial_rebalance_delay_ms", None, pointer, ctypes.c_int32)
declare("rd_kafka_mock_topic_create", number, pointer, text, number, number)
declare("rd_kafka_mock_cluster_bootstraps", text, pointer)

client = kafka.rd_kafka_new(0, kafka.rd_kafka_conf_new(), ctypes.create_string_buffer(512), 512)
cluster = kafka.rd_kafka_mock_cluster_new(client, 1)
kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 0)
print(kafka.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
for line in sys.stdin:
    topic, _, partitions = line.strip().partition(" ")
    print(kafka.rd_kafka_mock_topic_create(cluster, topic.encode(), int(partitions), 1), flush=True)
