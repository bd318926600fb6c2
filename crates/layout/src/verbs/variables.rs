//! The environment variables of RDMA programs.

use crate::environment::Variable;

/// Switches verbs off for a program.
pub const VERBS: Variable = Variable {
    name: "ISTHMUS_VERBS",
    default: "on",
    effect: "whether this program, if it uses RDMA, gets the paravirtual adapter from `isthmus run`: on or off",
};
