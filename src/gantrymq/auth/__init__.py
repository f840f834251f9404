"""RocketMQ's two kinds of access control. Each request is checked before its handler runs.

Start with `guard`, which wraps handlers. The first kind is plain_acl.yml of 4.x: `plain_acl` is the content of the
file, `plain_acl_file` reloads it, and `plain_access` checks requests. The second kind is users and policies of 5.x:
`users` and `policy` are the values, `user_table` stores them, and `user_access` checks requests. Both kinds use the
table in `request_permissions`: the permissions that each request needs. The rules are in `rules` and `permission`.
"""
