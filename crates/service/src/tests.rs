//! Workers over real rings in private memory, stepped by hand: every test is the same on each run. The tests with threads are in `sleeping`.

mod carrying;
mod hostile;
mod leaving;
mod neighbours;
mod refusing;
mod sleeping;
mod world;
