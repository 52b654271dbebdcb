"""Timing of sections on the device."""

from devito.passes.iet.instrument import instrument as devito_instrument

__all__ = ['instrument']

# Launches return at once, so what counts is when the device comes to them
MACROS = {
    'START(S)': 'devitocomp_timer timer_ ## S(device);',
    'STOP(S,T)': 'timer_ ## S.stop(&T->S);',
}


def instrument(graph, **kwargs):
    """Have the sections of an Operator timed."""
    devito_instrument(graph, **kwargs)
    graph.headers = [(i[0], MACROS[i[0]])
                     if isinstance(i, tuple) and i[0] in MACROS else i
                     for i in graph.headers]
