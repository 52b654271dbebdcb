"""
The conformance suite: whether a provider does what `devitocomp.h` says.

    devitocomp validate [ROOT]

`groups` holds the checks, by what they look at; they run in processes of their own
(`runner`), call the provider with right and wrong arguments (`driver`, `bench`) in memory
between canaries (`memory`), and `report` says what came out. Then `suites` runs the
acceptance suites, through real lowering.
"""
