"""A crawl by many workers in virtual time, watched by a referee who sees nothing but the wire.

    timeline    when: one clock of whole microseconds and what is to happen at which of them
    character   how a host answers
    world       which hosts there are, how large, under which policies, and where their links lead
    crew        the workers: they run the real flow, gate, rules, admission and frontier, and crash on the way
    referee     what the sites see, held against the policies; knows nothing of curtsy's records
    ledger      what became of every URL
    simulation  a whole day of it

Everything happens in one thread and all dice are one, so the same seed gives the same day to the microsecond.
"""
