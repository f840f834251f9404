"""Who may do what: RocketMQ's two ways of access control, told each request before its handler is.

plain_acl.yml of 4.x: `plain_acl` is the file's content, `plain_access` checks a request by it, `plain_acl_file` keeps
up with changes. Users and policies of 5.x: `users` and `policy` are the values, `user_table` keeps them, `user_access`
checks a request by them. What each request needs, for both: the table in `needs`, whose words are in `rules` and
`need`. Open `guard` first.
"""
