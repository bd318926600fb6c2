//! Workers over real rings in private memory, stepped by hand: every test is the same on each run. The tests with threads are in `sleeping`.

mod fixture;
mod forwarding;
mod links;
mod refusal;
mod removal;
mod sleeping;
mod violations;
mod workers;
