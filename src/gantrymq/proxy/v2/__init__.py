"""RocketMQ's gRPC messages, made from proto/ by `./dev proto`: nothing here is written by hand."""
