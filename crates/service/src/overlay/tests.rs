//! The poller over real sockets, without privileges: one end of a pair of local sockets takes the place of a TAP, and the hosts of edges are
//! two loopback addresses.

mod fairness;
mod fixture;
mod forwarding;
mod hostile;
mod pressure;
