//! Stock MPIs, and whatever else knows libfabric, on the provider as it is shipped, beside a real `isthmusd`.
//!
//! ```text
//!  fi_info, fi_pingpong            Debian's libfabric
//!  tests/mpi/c/PROGRAM.c           `PROGRAM CASE …`, compiled for each MPI there is:
//!        Debian's Open MPI 4.1     pml cm, mtl ofi, btl ofi
//!        MPICH, Open MPI and Intel MPI of PyPI, with libfabrics of their own
//!  tests/mpi/c/fabric.c            calls that no MPI makes, against libfabric alone
//!        each on one host, and on two that are made of namespaces
//!  hpcc, NetPIPE, mpi4py           what others have written
//! ```
//!
//! Nothing here installs anything: `scripts/setup` does, and a test says `skipped: …` where something is not there. Each test
//! of an MPI reads in what that says of itself that our provider was chosen, and is run so that it can choose nothing else.
//!
//! `ISTHMUS_FI_LIBRARY=DIR cargo test -p isthmus-mpi-tests` tests the provider that lies in DIR.

#![forbid(unsafe_code)]
