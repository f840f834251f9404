"""Schema registries with Confluent's REST interface: Confluent Schema Registry, Karapace, Apicurio's ccompat.

| module | contents |
|---|---|
| `settings` | addresses, credentials, TLS files, timeouts |
| `client` | `SchemaRegistry`: requests, retries, the cache of schemas |
| `connections` | HTTP with limits for the time and the size of a response |
| `wire_format` | the prefix of bodies: the id of the schema |
| `avro_schemas`, `protobuf_files` | schemas with their references |
| `codec` | `RegistryCodec` for clients; open it first |
| `schema_cache` | what a reader builds from schemas, by schema id |
| `schema_codecs` | the codec of one schema |
| `avro_json`, `json_schema_check` | the conversion and the check of JSON values |
| `field_errors` | their errors, which name the field |

Spark uses all modules except `codec`, `schema_codecs`, `avro_json` and `json_schema_check`. Needs the extra
`gantrymq[registry]`.
"""
