//! Who holds a lock inside this process: a task, a thread, or an explicit owner. Values only.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

tokio::task_local! {
    static SCOPE: Owner;
}

thread_local! {
    static SYNC_SCOPES: RefCell<Vec<Owner>> = const { RefCell::new(Vec::new()) };
}

/// Who a hold belongs to. Holds of one owner on one lock nest; different owners exclude each other.
///
/// Java asks for the current thread. Here the owner of a call is, in this order: the one given by
/// [`RLock::with_owner`](crate::RLock::with_owner); the innermost [`scope`](Owner::scope) around the code; the current
/// tokio task; outside any task (the body of `#[tokio::main]` too) the current thread. It is resolved once, at the first
/// poll of the call, and stays with the guard. A spawned task does not inherit it.
///
/// # Examples
/// Two futures joined in one task share the task, and so re-enter. With an owner each, they exclude each other:
/// ```
/// # async fn f(lock: redisson_lock::RLock) -> Result<(), redisson_lock::Error> {
/// use redisson_lock::Owner;
/// let (a, b) = (Owner::new(), Owner::new());
/// let (x, y) = tokio::join!(
///     a.scope(async { lock.lock().await?.unlock().await }),
///     b.scope(async { lock.lock().await?.unlock().await }),
/// );
/// x.and(y)
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Explicit(u64),
    Task(tokio::task::Id),
    Thread(ThreadId),
}

impl Owner {
    /// An owner that is nobody else's.
    #[allow(clippy::new_without_default)] // Two defaults would be two different owners.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Owner(Kind::Explicit(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// Who a call made here, now, would act for.
    pub fn current() -> Self {
        if let Some(owner) = SYNC_SCOPES.with_borrow(|scopes| scopes.last().copied()) {
            return owner;
        }
        if let Ok(owner) = SCOPE.try_with(|owner| *owner) {
            return owner;
        }
        match tokio::task::try_id() {
            Some(id) => Owner(Kind::Task(id)),
            None => Owner(Kind::Thread(std::thread::current().id())),
        }
    }

    /// Runs `future` with this owner: every call inside it, however deep, acts for it. Tasks that it spawns do not.
    pub fn scope<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        SCOPE.scope(self, future)
    }

    /// Runs `f` with this owner; for code that is not async. A future that `f` only makes, and that is polled later, acts
    /// for whoever polls it first.
    pub fn sync_scope<R>(self, f: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                SYNC_SCOPES.with_borrow_mut(|scopes| {
                    scopes.pop();
                });
            }
        }
        SYNC_SCOPES.with_borrow_mut(|scopes| scopes.push(self));
        let _leave = Leave;
        f()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Explicit(n) => write!(f, "owner {n}"),
            Kind::Task(id) => write!(f, "task {id}"),
            // Its number has no stable form of its own: `ThreadId(7)`.
            Kind::Thread(id) => {
                let id = format!("{id:?}");
                write!(f, "thread {}", id.trim_start_matches("ThreadId(").trim_end_matches(')'))
            }
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn scope_comes_before_task_and_task_before_thread() {
        let thread = Owner::current();
        assert!(thread.to_string().starts_with("thread"));
        tokio::spawn(async move {
            let task = Owner::current();
            assert!(task.to_string().starts_with("task"));
            let outer = Owner::new();
            let inner = Owner::new();
            outer
                .scope(async {
                    assert_eq!(Owner::current(), outer);
                    inner.sync_scope(|| assert_eq!(Owner::current(), inner));
                    inner.scope(async { assert_eq!(Owner::current(), inner) }).await;
                    let spawned = tokio::spawn(async { Owner::current() }).await.unwrap();
                    assert!(spawned != outer && spawned != task);
                })
                .await;
            assert_eq!(Owner::current(), task);
        })
        .await
        .unwrap();
    }
}
