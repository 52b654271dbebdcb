"""Ways to have the forward wavefield at hand when the adjoint one comes by."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from problems import components

from devitocomp_plugin import DevitoComp

__all__ = ['Case', 'Checkpointed', 'Compressed', 'Dense', 'NoSaving', 'Touched', 'Zfpy']


@dataclass(frozen=True)
class Case:

    """
    One way to do it.

    Parameters
    ----------
    name : str
    method : type
        One of the classes below.
    factor : int
        Of subsampling.
    root : Path, optional
        The DEVITOCOMP_ROOT.
    error, layers, scratch : optional
        Of compression, and the directory of layers with a disk.
    memory : int, optional
        Bytes that checkpoints may take. Defaults to 0: as many as pyrevolve likes.
    """

    name: str
    method: type
    factor: int = 1
    root: Path | None = None
    error: float = 1e-3
    layers: str = 'host'
    scratch: str | None = None
    memory: int = 0


class NoSaving:

    """
    Forward and adjoint propagation, and nothing in between.

    Parameters
    ----------
    problem : Problem
    case : Case
    """

    has_gradient = False

    def __init__(self, problem, case):
        self.problem = problem
        self.case = case
        self.gradient = problem.make_gradient() if self.has_gradient else None
        self.histories = self.make_histories()
        self.build()

    def build(self):
        self.forward_op = self.problem.forward_operator(self.histories)
        self.gradient_op = self.problem.gradient_operator(self.histories, self.gradient)

    def make_histories(self, steps=None):
        return []

    def prepare(self):
        """Compile, load libraries and start threads, without touching the histories."""
        others = self.make_histories(steps=2) + self.problem.points(steps=2)
        others = {i.name: i for i in components(others)}
        for op in (self.forward_op, self.gradient_op):
            names = {i.name for i in op.parameters}
            op.apply(time_m=0, time_M=1, **{k: others[k] for k in names & set(others)})
        self.reset()

    def reset(self):
        self.problem.reset()
        if self.gradient is not None:
            self.gradient.data.fill(0)

    def forward(self):
        return self.forward_op.apply(time_m=0, time_M=self.problem.nt - 1)

    def adjoint(self):
        return self.gradient_op.apply(time_m=0, time_M=self.problem.nt - 1)

    @property
    def history_bytes(self):
        return 0

    codec_s = 0.
    """Seconds in which snapshots were compressed and decompressed, of the total."""


class Dense(NoSaving):

    """Saving into functions of plain Devito."""

    has_gradient = True

    def make_histories(self, steps=None):
        return self.problem.make_histories(steps)

    @property
    def history_bytes(self):
        return self.problem.dense_bytes


class Touched(Dense):

    """The same, in memory that the process has used before."""

    def prepare(self):
        super().prepare()
        for i in components(self.histories):
            i.data.fill(0)


class Compressed(Dense):

    """Saving into compressed functions."""

    def make_histories(self, steps=None):
        scratch = self.case.scratch if steps is None and 'disk' in self.case.layers \
            else None
        return self.problem.make_histories(
            steps, compression=DevitoComp(error=self.case.error), layers=self.case.layers,
            serialization=scratch)

    @property
    def reports(self):
        return [i.compression_report() for i in components(self.histories)]

    @property
    def history_bytes(self):
        return sum(i.stored_bytes for i in self.reports)

    @property
    def codec_s(self):
        # Of one run: each reads a snapshot once
        return sum(i.compress_seconds + i.decompress_seconds/max(1, i.decompressions)
                   for report in self.reports for i in report.per_snapshot)


class Zfpy(Dense):

    """A loop over time steps in Python, which compresses what is saved with zfpy."""

    def make_histories(self, steps=None):
        return self.problem.make_snapshots()

    def build(self):
        self.forward_op = self.problem.forward_operator()
        self.gradient_op = self.problem.gradient_operator(self.histories, self.gradient)

    def forward(self):
        import zfpy
        self.payloads = []
        for i in range(self.problem.nt):
            self.forward_op.apply(time_m=i, time_M=i)
            for f in components(self.problem.saved):
                values = np.ascontiguousarray(f.data[i % f.shape[0]])
                self.payloads.append(zfpy.compress_numpy(
                    values, tolerance=self.case.error*float(np.abs(values).max())))

    def adjoint(self):
        import zfpy
        snapshots = components(self.histories)
        for i in reversed(range(self.problem.nt)):
            payloads = self.payloads[i*len(snapshots):]
            for f, payload in zip(snapshots, payloads, strict=False):
                f.data[:] = zfpy.decompress_numpy(payload)
            self.gradient_op.apply(time_m=i, time_M=i)

    @property
    def history_bytes(self):
        return sum(len(i) for i in self.payloads)


class Checkpointed(Dense):

    """Recomputing from checkpoints, with pyrevolve."""

    def make_histories(self, steps=None):
        # The state itself, which is brought back by recomputing it
        return self.problem.saved

    def build(self):
        self.forward_op = self.problem.forward_operator()
        self.gradient_op = self.problem.gradient_operator(self.histories, self.gradient)

    def forward(self):
        from devito import CheckpointOperator, DevitoCheckpoint
        from pyrevolve import MemoryRevolver

        class Checkpoint(DevitoCheckpoint):

            def get_data(self, timestep):
                # What step `timestep` reads; Devito's assumes that the first one is 1
                return [i._data[timestep - j] for i in self.objects
                        for j in range(i.time_order)]

        nt = self.problem.nt
        checkpoint = Checkpoint(components(self.problem.state))
        wanted = -(-self.case.memory // checkpoint.nbytes) if self.case.memory else None
        forward, adjoint = (CheckpointOperator(i, time_m=0, time_M=nt - 1)
                            for i in (self.forward_op, self.gradient_op))
        self.revolver = MemoryRevolver(checkpoint, forward, adjoint, wanted, nt)
        self.revolver.apply_forward()

    def adjoint(self):
        self.revolver.apply_reverse()

    @property
    def history_bytes(self):
        return self.revolver.n_checkpoints*self.revolver.checkpoint.nbytes
