"""Schema registries with Confluent's REST interface: Confluent Schema Registry, Karapace, Apicurio's ccompat.

| module | contents |
|---|---|
| `settings` | addresses, credentials, TLS files, timeouts |
| `client` | `SchemaRegistry`: requests, retries, the cache of schemas |
| `connections` | HTTP with limits for the time and the size of a response |
| `wire_format` | the prefix of bodies: the id of the schema |
| `avro_schemas`, `protobuf_files` | schemas with their references |

Spark reads and writes use the same modules. Needs the extra `gantrymq[registry]`.
"""
