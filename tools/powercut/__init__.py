"""Power cuts under a real kernel, a real file system and a real process.

    python -m tools.powercut --filesystem ext4 --images 40 --seed 1

A file served by this program over FUSE lies under a loop device, and on the device is a
file system of the kernel's::

    workload ──────────────── its acknowledgements (lines on standard output) ──┐
       │ write, fdatasync, rename …                                             │
    ext4, XFS or Btrfs                                                          │
       │ block writes, flushes                                                  ▼
    loop device ──► file over FUSE ──► recorder: one record, in the order of arrival

After the run the record is cut somewhere: everything up to a flush is on the disk, and
of what was written behind it *any* part may be, since a disk keeps back what it likes
and writes in the order it likes. Each such *image* is built as a file, mounted (the
kernel replays its journal), and judged by a second command, the verifier, which is told
what was acknowledged before the cut. Its run may be recorded as well, and cut again:
then it is the recovery that the power failed.

**Commands.** Any storage code can be tried: ``--workload`` and ``--verify`` take shell
words. ``{directory}`` in them becomes the mounted directory, ``{seed}`` the seed.

    workload    Its standard output is the record of what it acknowledged. A line is
                written with one write(2) of at most 4,096 bytes, *after* the call that
                it tells of has returned: whatever was flushed until then counts as
                flushed. Lines written *before* a call say that it may have happened.
                The run ends when the command does; its status has to be 0.
    verify      Gets the lines before the cut on standard input, and the directory as
                the cut left it. Status 0: all that was promised is there. 1: it isn't,
                and standard error says what. Any other status, and a run of more than
                a minute, count as 1 (a store that can't be opened is lost). What it
                promises itself goes to standard output, by the same rules: where its
                own run is cut, the next verifier gets the lines of both.

Both see ``/proc/sys/kernel/random/boot_id`` as of a machine that was started again.

**What is not real.** The cache of the disk is the record, so nothing here tells how a
certain drive behaves, only what one may do that keeps its word about a flush. A write
that the kernel had under way when it asked for a flush counts as covered if it arrived
first. Loop devices know no forced unit access: the kernel flushes instead, which covers
more. Superblocks that a file system keeps at one place without a second copy to mount
from are written whole, as it asks of a disk itself. Which writes the kernel issues is
not a function of the seed; a kept image is, and can be judged again.

Needs root, FUSE (Debian ``fuse3``, ``mfusepy``), loop devices and the file systems'
tools (``e2fsprogs``, ``xfsprogs``, ``btrfs-progs``), Linux only.
"""
