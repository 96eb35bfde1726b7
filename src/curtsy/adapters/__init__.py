"""Adapters: the manners of curtsy for other HTTP libraries.

The contract of every adapter:

- One request of the library is one hop of the flow that `AsyncClient` runs (`core/flow.py:fetch_hop`): settings,
  address guard, robots.txt, cache if requested, gate, send, settle. No adapter repeats one of these rules.
- The library sends the request, in its own way, and its own response is returned. The record of the host is settled
  when status and headers have come. The end of the body, or its close, returns the slot. A body that is neither read
  nor closed returns the slot when the response is deleted, or when the lease expires.
- Redirects, cookies, authentication and retries are the library's. Each of its requests passes the gate. An adapter
  never retries.
- The User-Agent is the library's. robots.txt is judged by it. A request without one gets that of the settings.
- robots.txt is requested by the built-in sender of curtsy, past the adapter.
- A refusal is raised as `Refused` of the adapter: a subclass of `curtsy.Refused` and of an exception of the library.
- The address guard resolves the name and refuses private addresses before the library connects. The library resolves
  the name again, so only the built-in sender pins the address.

`hops` has the implementation that all adapters share. Each other module adapts one library and needs its extra.
"""
