"""Hosts for tests: processes of one replica, networks to cut, and slow ways between them."""
