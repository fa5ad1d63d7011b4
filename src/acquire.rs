//! The future behind `lock`, `try_lock` and `try_lock_for`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::client::Handle;
use crate::clock::Moment;
use crate::engine::call::{Call, Found, Grant, Patience, Request};
use crate::error::Error;

/// Asks when first polled; withdraws when dropped.
pub(crate) struct Acquire {
    handle: Arc<Handle>,
    call: Arc<Call>,
    begun: bool,
    over: bool,
}

impl Acquire {
    pub(crate) fn new(handle: Arc<Handle>, request: Request) -> Self {
        Acquire { handle, call: Call::new(request, Moment::now()), begun: false, over: false }
    }

    fn expired_before_use(&self) -> Error {
        let request = &self.call.request;
        Error::ExpiredBeforeUse {
            lock: request.name.given().into(),
            owner: request.owner,
            lease: request.lease.as_duration(),
        }
    }

    /// A grant that ran out on its way from the engine to here is not handed out.
    fn pick_up(&self, grant: Grant) -> Result<Option<Grant>, Error> {
        if grant.hold.lost().is_none() {
            return Ok(Some(grant));
        }
        self.handle.engine.leave(&grant, None);
        Err(self.expired_before_use())
    }
}

impl Future for Acquire {
    type Output = Result<Option<Grant>, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !std::mem::replace(&mut self.begun, true) {
            self.handle.engine.begin(&self.call);
        }
        loop {
            let Poll::Ready(found) = self.call.poll(cx) else { return Poll::Pending };
            let outcome = match found {
                Found::Outcome(Ok(Some(grant))) => self.pick_up(grant),
                Found::Outcome(outcome) => outcome,
                Found::Recalled => match self.call.request.patience {
                    Patience::Once => Err(self.expired_before_use()),
                    Patience::Until(end) if Moment::now() >= end => Ok(None),
                    Patience::Until(_) => {
                        self.call.reopen();
                        self.handle.engine.begin(&self.call);
                        continue;
                    }
                },
            };
            self.over = true;
            return Poll::Ready(outcome);
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if self.begun && !self.over {
            self.handle.engine.cancel(&self.call);
        }
    }
}
