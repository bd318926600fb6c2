//! Work of other threads that capabilities go on with.

use std::fmt;
use std::pin::Pin;

use super::Core;

/// Work that another thread does, and that `C` goes on with: a capability, or all of them.
pub(crate) struct AwaitedWork<C>(Pin<Box<dyn Future<Output = Finish<C>>>>);

/// The part of [`AwaitedWork`] that follows the work.
pub(crate) type Finish<C> = Box<dyn FnOnce(&mut C, &mut Core)>;

impl<C: 'static> AwaitedWork<C> {
    /// Waits for `work`, and then calls its result.
    pub(crate) fn new<F: FnOnce(&mut C, &mut Core) + 'static>(work: impl Future<Output = F> + 'static) -> Self {
        Self(Box::pin(async { Box::new(work.await) as Finish<C> }))
    }

    /// Returns the work for all capabilities, of which `part` returns this one.
    pub(crate) fn of<All: 'static>(self, part: impl FnOnce(&mut All) -> &mut C + 'static) -> AwaitedWork<All> {
        AwaitedWork::new(async {
            let finish = self.0.await;
            move |all: &mut All, core: &mut Core| finish(part(all), core)
        })
    }

    /// Waits for the work.
    pub(crate) async fn wait(self) -> Finish<C> {
        self.0.await
    }
}

impl<C> fmt::Debug for AwaitedWork<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AwaitedWork")
    }
}
