//! Makes reports with many rows in slices, so that other users do not wait for the whole of a long one.
//!
//! ```text
//!   begin ──► step, step, … ──► Finish            the control thread: some rows in each turn
//!                                  └──► JSON      another thread
//! ```
//!
//! A table may change between two slices. A row that is there all the time is in the report once.

use serde::Serialize;

use super::written::{Finish, finish, json};
use crate::broker::Broker;
use crate::viewer::Viewer;

/// A report that is being made.
pub(crate) trait ReportMaker {
    /// Makes some rows. Returns the rest of the work once all rows are made.
    fn step(&mut self, broker: &Broker) -> Option<Finish>;
}

/// A report without many rows.
pub(super) struct Whole(Option<Finish>);

impl Whole {
    /// Returns a report that only has to be written.
    pub(super) fn new(report: impl Serialize + Send + 'static) -> Self {
        finish(report).into()
    }
}

impl From<Finish> for Whole {
    fn from(finish: Finish) -> Self {
        Self(Some(finish))
    }
}

impl ReportMaker for Whole {
    fn step(&mut self, _: &Broker) -> Option<Finish> {
        self.0.take()
    }
}

/// A report with a row, or a few, for each key of a table.
pub(crate) trait Table: 'static {
    /// A key.
    type Key;
    /// A row.
    type Row: Send + 'static;
    /// The report.
    type Report: Serialize;

    /// The number of keys in a slice.
    const SLICE: usize;

    /// Returns the first key after another one. Takes no longer if the table is large.
    fn next(broker: &Broker, after: Option<&Self::Key>) -> Option<Self::Key>;

    /// Adds what the viewer sees of a key.
    fn add(broker: &Broker, viewer: &Viewer, key: &Self::Key, rows: &mut Vec<Self::Row>);

    /// Adds the rest, once all rows are there. The result is called by another thread.
    fn finish(
        broker: &Broker,
        viewer: &Viewer,
        rows: Vec<Self::Row>,
    ) -> impl FnOnce() -> Self::Report + Send + 'static + use<Self>;
}

/// The rows of a report, as far as they are made.
pub(crate) struct Rows<T: Table> {
    viewer: Viewer,
    last: Option<T::Key>,
    rows: Vec<T::Row>,
}

impl<T: Table> Rows<T> {
    /// Begins a report.
    pub(crate) fn new(viewer: Viewer) -> Self {
        Self { viewer, last: None, rows: Vec::new() }
    }

    /// Makes some rows. Returns the rest of the work once all rows are made.
    pub(crate) fn step(&mut self, broker: &Broker) -> Option<Box<dyn FnOnce() -> T::Report + Send>> {
        for _ in 0..T::SLICE {
            let Some(key) = T::next(broker, self.last.as_ref()) else {
                return Some(Box::new(T::finish(broker, &self.viewer, std::mem::take(&mut self.rows))));
            };
            T::add(broker, &self.viewer, &key, &mut self.rows);
            self.last = Some(key);
        }
        None
    }
}

impl<T: Table> ReportMaker for Rows<T> {
    fn step(&mut self, broker: &Broker) -> Option<Finish> {
        let finish = Rows::step(self, broker)?;
        Some(Box::new(move || json(&finish())))
    }
}
