"""
The same work for us and for the peers, side by side, on one machine in one run.

``contenders`` says who they are. Each has an adapter: one small module in ``adapters`` with the settings that its
documentation recommends. Each lives in an environment of its own (``environments``). Every round visits each of them
once (``visit``, a process in that environment), measures all there is to measure (``measures``), and leaves nothing
running. ``page`` and ``chart`` make the documentation of it. ``python -m benchmarks.peers --help``.

What runs in a peer's environment (``visit``, ``measures``, ``workers``, ``database``, ``settings``, ``work``, the
adapters) imports nothing but the standard library, Django and that peer.
"""
