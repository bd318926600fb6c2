//! Messages, collective operations and windows, on each MPI, with different numbers of ranks.

use crate::mpis::Mpi;
use crate::run::run;

/// Makes a test of each program on each MPI, with the given number of ranks.
macro_rules! everywhere {
    ($($name:ident: $program:literal, $ranks:literal, $cases:expr;)*) => {
        mod debian_open_mpi {
            $(#[test]
            fn $name() {
                super::run(super::Mpi::debian_open_mpi(), $ranks, $program, &$cases);
            })*
        }

        mod open_mpi_wheel {
            $(#[test]
            fn $name() {
                super::run(super::Mpi::open_mpi_wheel(), $ranks, $program, &$cases);
            })*
        }

        mod intel_mpi_wheel {
            $(#[test]
            fn $name() {
                super::run(super::Mpi::intel_mpi_wheel(), $ranks, $program, &$cases);
            })*
        }

        mod mpich_wheel {
            $(#[test]
            fn $name() {
                super::run(super::Mpi::mpich_wheel(), $ranks, $program, &$cases);
            })*
        }
    };
}

everywhere! {
    messages_of_two: "messages", 2, [];
    messages_of_three: "messages", 3, [];
    messages_of_eight: "messages", 8, [];
    collective_of_two: "collective", 2, [];
    collective_of_five: "collective", 5, [];
    collective_of_eight: "collective", 8, [];
    unexpected_by_the_hundred_thousand: "stress", 2, ["hundred_thousand_unexpected"];
    children_in_the_middle: "stress", 2, ["children"];
    threads_at_once: "stress", 3, ["threads"];
    a_late_rank: "stress", 3, ["late"];
    more_ranks_than_processors: "stress", 64, ["crowd"];
    three_gigabytes: "stress", 2, ["three_gigabytes"];
}
